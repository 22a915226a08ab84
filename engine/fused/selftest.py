"""Compares a loaded model's kernels with the same weights computed by the ops' plain torch reference.

Each sequence is computed alone by the reference, and all together by the engine. A kernel that ignores a window gives
the same wrong row alone and together, so comparing these two does not show it.
"""

import dataclasses
import gc
import logging

import numpy as np
import torch
from numpy.typing import NDArray

from engine.fused.assembly import Model, assemble
from engine.fused.engine import FusedEngine
from engine.fused.model.reference import ReferenceOps
from engine.selftest import selfcheck
from engine.selftest.comparison import agreement, is_near, not_finite
from engine.selftest.sample_ids import Sequences
from engine.types import Engine, EngineError, EngineErrorKind, ModelError, OutputKind

logger = logging.getLogger("embedline.engine")


def check(engine: FusedEngine, model: Model, sequences: Sequences) -> None:
    """Raises ModelError if the engine fails, or its rows are not finite or not the reference's.

    A reference that finds no memory beside the engine is logged, and the check left out.
    """
    expected = None if isinstance(model.ops, ReferenceOps) else _expected(model, sequences)
    gc.collect()  # devices know each other
    torch.cuda.empty_cache()  # of a process that uses none, this does nothing
    if expected is None:
        return
    found = _token_rows(engine, sequences)
    dtype = engine.info.dtype
    if not np.isfinite(found).all():
        raise not_finite("fused", dtype)
    near = agreement(found, expected, dtype=dtype)
    if not is_near(near, dtype=dtype):
        raise ModelError(
            f"the fused engine's kernels do not give the rows of plain torch: {near.in_words}; --engine transformers "
            "may serve the model"
        )


def _expected(model: Model, sequences: Sequences) -> NDArray[np.float32] | None:
    """Token rows [T, D]; None if there is no memory for them."""
    plain = dataclasses.replace(model, ops=ReferenceOps(), attention=None)
    try:
        reference = assemble(plain, max_num_tokens=max(map(len, sequences)), records=False)
        return np.concatenate([_token_rows(reference, [sequence]) for sequence in sequences])
    except (torch.OutOfMemoryError, _NoMemory):
        logger.warning("the self-test of the fused engine's kernels is left out: there is no memory for its reference")
        return None


class _NoMemory(Exception):
    """The reference ran out of memory."""


def _token_rows(engine: Engine, sequences: Sequences) -> NDArray[np.float32]:
    """[T, D]. Raises ModelError, and _NoMemory."""
    rows = []
    for batch in selfcheck.batches(engine.limits, sequences):
        results = selfcheck.answered(engine, batch, OutputKind.TOKENS)
        if isinstance(results, EngineError):
            if results.kind is EngineErrorKind.OUT_OF_MEMORY:
                raise _NoMemory
            raise selfcheck.cannot_run("fused", results)
        rows.append(results[OutputKind.TOKENS].values)
    return np.concatenate(rows)
