"""The first batches of a loaded model: the shortest, the largest, and the same sequences alone and together.

The library only warns where its own largest warm-up shape runs out of memory, so that a server could start and fail
later of what it had promised to take.
"""

import dataclasses
import logging

from engine.model.model_folder import ModelFolder
from engine.selftest import sample_ids, selfcheck
from engine.selftest.sample_ids import Sequences
from engine.tensorrt_llm.library.loading import release_memory
from engine.types import DeviceTrouble, Engine, EngineError, EngineErrorKind, EngineLimits

logger = logging.getLogger("embedline.engine")


def affordable_limits(engine: Engine, folder: ModelFolder) -> EngineLimits:
    """The engine's limits, with no larger batches than there turns out to be memory for.

    Raises ModelError where a batch fails otherwise, or where there is no memory for the longest sequence.
    """
    found, asked = engine.limits, engine.limits.max_num_tokens
    _compute(engine, sample_ids.arbitrary(folder, [1]))
    while not _compute(engine, sample_ids.largest_batch(folder, found)):
        if found.max_num_tokens <= found.max_seqlen:
            raise DeviceTrouble(
                f"one sequence of {found.max_seqlen} tokens runs out of memory on {engine.info.device}: free some of "
                "it there, or lower --max-input-length"
            )
        release_memory()
        found = dataclasses.replace(found, max_num_tokens=max(found.max_num_tokens // 2, found.max_seqlen))
    if found.max_num_tokens < asked:
        logger.warning("batches of at most %d tokens: %d run out of memory", found.max_num_tokens, asked)
    return found


def _compute(engine: Engine, sequences: Sequences) -> bool:
    """Whether there is memory for it. Raises ModelError where it fails otherwise."""
    results = selfcheck.answered(engine, sequences)
    if not isinstance(results, EngineError):
        return True
    if results.kind is EngineErrorKind.OUT_OF_MEMORY:
        return False
    raise selfcheck.cannot_run(engine.info.engine, results)
