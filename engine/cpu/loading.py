"""Loads a CPU engine from the cache, or converts the model first. Imports neither torch nor transformers."""

import dataclasses
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from engine.cpu import converted as converted_file
from engine.cpu import exported, keys, memory
from engine.cpu.child import Child
from engine.cpu.choices import Choices, check, check_outputs, choices_of
from engine.cpu.converted import Converted
from engine.cpu.converting import convert
from engine.cpu.engine import DEPTH, CompiledEngine
from engine.cpu.examination import examine
from engine.cpu.executor import Executor
from engine.cpu.executors import openvino
from engine.cpu.facts import Facts
from engine.cpu.outputs import Makers, makers_of, sizes_of
from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder
from engine.model.tasks import VocabularyWeights
from engine.model.weights import weights_of
from engine.model.with_options import read_with
from engine.store.cache import Cache, check_room
from engine.types import MAX_NUM_SEQS, EngineLimits, ModelError, ModelInfo, OnStage, OutputKind, untold

logger = logging.getLogger("embedline.engine")

# Tokens of a batch for each stream. Twice as many would save another 2 % of padding at most.
_TARGET_NUM_TOKENS = 2048
_MAX_NUM_TOKENS = 16_384  # of a batch, by default
_GRAPH_BYTES = 16 << 20


def load(*, name: str, reason: str, options: LoadOptions, on_stage: OnStage = untold) -> CompiledEngine:
    """Load a model into the openvino engine. Raises ModelError with one line."""
    check(options)
    folder = read_with(options)
    check_outputs(folder, options)
    max_num_tokens = max(options.max_num_tokens or _MAX_NUM_TOKENS, folder.max_seqlen)
    num_long_streams = memory.num_long_streams(
        folder,
        num_threads=options.num_threads,
        has_vocabulary_scores=any(isinstance(head, VocabularyWeights) for head in folder.heads),
    )
    makers = makers_of(folder)
    loader = _Loader(folder, choices_of(folder, options), options, on_stage)
    executor, facts = loader.load(makers)
    sizes = sizes_of(folder, facts.dimensions)
    info = _info(folder, loader.choices, facts, sizes, name=name, reason=reason)
    limits = EngineLimits(
        max_num_tokens=max_num_tokens,
        max_num_seqs=options.max_num_seqs or MAX_NUM_SEQS,
        max_seqlen=folder.max_seqlen,
        depth=DEPTH,
        puts_urgent_first=True,
        overlaps=True,
        target_num_tokens=min(max_num_tokens, len(executor.streams) * _TARGET_NUM_TOKENS),
    )
    return CompiledEngine(
        executor,
        makers,
        info=info,
        limits=limits,
        pad_id=facts.pad_id,
        sizes=sizes,
        num_long_streams=num_long_streams,
    )


def export(options: LoadOptions, target: Path) -> tuple[str, Facts]:
    """Convert a model, test it on this CPU, and write it into the empty folder `target` for any. Returns its key, and
    the results of the test. Raises ModelError with one line."""
    check(options)
    folder = read_with(options)
    check_outputs(folder, options)
    check_room(target, _most_bytes(folder.path))
    makers, choices = makers_of(folder), choices_of(folder, options, for_any_cpu=True)
    converted = convert(folder, choices, target=target)
    opening = partial(_open_new, target, num_threads=options.num_threads)
    _, facts = examine(opening, converted, choices_of(folder, options), makers=makers)
    sizes_of(folder, facts.dimensions)
    return exported.write(target, converted, folder, choices), facts


class _Loader:
    """Loads one compiled model, from the cache if it is there."""

    def __init__(self, folder: ModelFolder, choices: Choices, options: LoadOptions, on_stage: OnStage) -> None:
        self.choices = choices
        self._on_stage = on_stage
        self._folder = folder
        root = Path(options.cache_dir, "compiled") if options.cache_dir else None
        self._cache = Cache(root, max_bytes=options.max_cache_bytes)
        self._options = options

    def load(self, makers: Makers) -> tuple[Executor, Facts]:
        self._on_stage("compiled model")
        if self._options.compiled is not None and (taken := self._load_exported(Path(self._options.compiled), makers)):
            return taken
        key = keys.local(self._folder, self.choices)
        loaded = self._load_warm(key)
        return loaded or self._load_cold(key, makers)

    def _convert(self, target: Path) -> Converted:
        if not self._options.compiles_in_child:
            return convert(self._folder, self.choices, target=target)
        with Child(self._options, target) as child:
            openvino.import_openvino()  # while the child imports its own libraries
            child.wait()
        converted = converted_file.read(target)
        (target / converted_file.FILE).unlink()
        return converted

    def _load_exported(self, entry: Path, makers: Makers) -> tuple[Executor, Facts] | None:
        """From what `embedline compile` wrote; None, after a warning, where that can't be used here."""
        try:
            converted = exported.read(entry, self._folder, self.choices)
            opening = partial(_open_new, entry, num_threads=self._options.num_threads)
            executor, facts = examine(opening, converted, self.choices, makers=makers, is_new=False)
            sizes_of(self._folder, facts.dimensions)
        except Exception as error:  # a damaged manifest can cause any error
            logger.warning("the compiled model in %s is not used: %s; it is made anew", entry, one_line(error))
            return None
        logger.info("compiled model loaded from %s, and tested on this CPU: %s", entry, "; ".join(facts.notes))
        return executor, facts

    def _load_warm(self, key: str) -> tuple[Executor, Facts] | None:
        entry = self._cache.find(key)
        if entry is None:
            return None
        try:
            facts = Facts.decode(entry.facts)
            executor = openvino.open_model(entry.folder, dtype=facts.dtype, num_threads=self._options.num_threads)
        except Exception as error:
            self._cache.discard(key, why=one_line(error))
            return None
        logger.info("compiled model loaded from %s: %s", entry.folder, "; ".join(facts.notes))
        return executor, facts

    def _load_cold(self, key: str, makers: Makers) -> tuple[Executor, Facts]:
        with self._cache.new_folder(_most_bytes(self._folder.path)) as target:
            self._on_stage("conversion")
            converted = self._convert(target)
            self._on_stage("self-test")
            opening = partial(_open_new, target, num_threads=self._options.num_threads)
            executor, facts = examine(opening, converted, self.choices, makers=makers)
            sizes_of(self._folder, facts.dimensions)  # raises before the cache keeps anything
            self._cache.put(key, target, dataclasses.asdict(facts))
        logger.info("model compiled: %s", "; ".join(facts.notes))
        return executor, facts


def _open_new(folder: Path, dtype: str, *, num_threads: int, has_wide: bool = True) -> Executor:
    try:
        return openvino.open_model(folder, dtype=dtype, num_threads=num_threads, has_wide=has_wide)
    except Exception as error:
        raise ModelError(
            f"openvino can't compile the model: {one_line(error)}; --engine transformers may serve it"
        ) from error


def _most_bytes(folder: Path) -> int:
    """That the converted model takes on the disk: every number as a float32, and the graph."""
    return 4 * sum(weights_of(folder).num_parameters.values()) + _GRAPH_BYTES


def _info(
    folder: ModelFolder, choices: Choices, facts: Facts, sizes: Mapping[OutputKind, int], *, name: str, reason: str
) -> ModelInfo:
    dtype = facts.dtype if choices.quantization == "none" else choices.quantization
    return dataclasses.replace(
        folder.info(name=name, engine=choices.engine, reason=reason, dtype=dtype, device="cpu", notes=facts.notes),
        dimensions=sizes.get(OutputKind.POOLED, folder.dimensions),
        token_dimensions=sizes.get(OutputKind.TOKENS),
        is_padded=True,  # mini-batches are padded
    )
