"""Loads a CPU engine from the cache, or converts the model first. Imports neither torch nor transformers."""

import dataclasses
import importlib.util
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from engine.compile import compile_in_child
from engine.cpu import memory
from engine.cpu.engine import DEPTH, CompiledEngine
from engine.cpu.executor import Executor
from engine.cpu.executors import openvino
from engine.cpu.facts import Choices, Facts
from engine.cpu.outputs import TOKEN_ROWS, Makers, head_in_graph, makers_of, sizes_of, steps_of
from engine.machine import host
from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.model.arrays import weights_files
from engine.model.model_folder import ModelFolder, read_as
from engine.model.tasks import SequenceScores, TokenScores, VocabularyWeights
from engine.model.weights import weights_of
from engine.model.with_options import read_with
from engine.store import fingerprint
from engine.store.cache import Cache
from engine.types import MAX_NUM_SEQS, EngineLimits, ModelError, ModelInfo, OutputKind

logger = logging.getLogger("embedline.engine")

# Tokens of a batch for each stream. Twice as many would save another 2 % of padding at most.
_TARGET_NUM_TOKENS = 2048
_MAX_NUM_TOKENS = 16_384  # of a batch, by default
_GRAPH_BYTES = 16 << 20
_EXTRA = "'embedline[server]'"

# Packages and files of ours that the compiled model depends on.
_CONVERTING = ("torch", "transformers")
_SOURCES = (
    "cpu/**/*.py",
    "machine/host.py",
    "model/**/*.py",
    "rows/*.py",
    "selftest/*.py",
    "transformers/configuration.py",
    "transformers/distance_bias.py",
    "transformers/headers.py",
    "transformers/loading.py",
    "transformers/models/*.py",
)


def load(*, name: str, reason: str, options: LoadOptions) -> CompiledEngine:
    """Load a model into the openvino engine. Raises ModelError with one line."""
    _check(options)
    folder = read_with(options)
    _check_outputs(folder, options)
    max_num_tokens = max(options.max_num_tokens or _MAX_NUM_TOKENS, folder.max_seqlen)
    memory.check_length(
        folder,
        num_threads=options.num_threads,
        max_num_tokens=2 * DEPTH * max_num_tokens,  # urgent and others
        has_vocabulary_scores=any(isinstance(head, VocabularyWeights) for head in folder.heads),
    )
    makers = makers_of(folder)
    loader = _Loader(folder, _choices(folder, options), options)
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
    return CompiledEngine(executor, makers, info=info, limits=limits, pad_id=facts.pad_id, sizes=sizes)


def _check(options: LoadOptions) -> None:
    if options.device != "cpu":
        raise ModelError(f"the openvino engine runs on the CPU, not on {options.device!r}")
    missing = [package for package in openvino.PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ModelError(f"the openvino engine needs {missing[0]}, which is not installed: pip install {_EXTRA}")
    openvino.check(options.dtype, _quantization(options))


def _check_outputs(folder: ModelFolder, options: LoadOptions) -> None:
    """Raises ModelError if one compiled model can't give all the outputs."""
    if folder.is_static:
        raise ModelError("the openvino engine computes no static embeddings; --engine static does")
    if folder.query_table:
        raise ModelError("the openvino engine looks no queries up in a table; --engine transformers does")
    if folder.tokenizer_folder:
        raise ModelError(
            f"the openvino engine wants the Transformer in the model's own folder, and this one is in "
            f"{folder.tokenizer_folder!r}; --engine transformers does not mind"
        )
    head_in_graph(folder)
    embeds = OutputKind.POOLED | OutputKind.TOKENS
    if _quantization(options) != "none" and folder.outputs & ~embeds:
        kinds = ", ".join(kind.name or "" for kind in folder.outputs & ~embeds)
        raise ModelError(
            f"--quantization {options.quantization} of the openvino engine is for models that give embeddings "
            f"alone, and this one gives {kinds}; serve it with --quantization none"
        )


def _choices(folder: ModelFolder, options: LoadOptions) -> Choices:
    return Choices(
        engine=openvino.NAME,
        dtype=_dtype(folder, options),
        quantization=_quantization(options),
        pooling=", ".join((folder.pooling, *map(str, folder.steps))),
        computes=_computes(folder),
    )


def _dtype(folder: ModelFolder, options: LoadOptions) -> str:
    """See Choices.dtype. "auto" is for embeddings alone, since the loss of no other output is measured."""
    if options.dtype != "auto":
        return options.dtype
    embeds = OutputKind.POOLED in folder.outputs and not folder.outputs & ~(OutputKind.POOLED | OutputKind.TOKENS)
    can_be_lower = embeds and _quantization(options) == "none"
    return "auto" if can_be_lower and host.multiplies_bfloat16() else "float32"


def _computes(folder: ModelFolder) -> str:
    head = head_in_graph(folder)
    if isinstance(head, SequenceScores | TokenScores):
        return f"{type(head).__name__} of {len(head.labels)} labels"
    token_rows = f"{TOKEN_ROWS}, some of them hidden" if folder.hides_tokens else TOKEN_ROWS
    return token_rows if head is None else repr(head)


def _quantization(options: LoadOptions) -> str:
    """On a CPU "auto" means none: int8 loses fidelity, so users choose it themselves."""
    return "none" if options.quantization == "auto" else options.quantization


class _Loader:
    """Loads one compiled model, from the cache if it is there."""

    def __init__(self, folder: ModelFolder, choices: Choices, options: LoadOptions) -> None:
        self.choices = choices
        self._folder = folder
        root = Path(options.cache_dir, "compiled") if options.cache_dir else None
        self._cache = Cache(root, max_bytes=options.max_cache_bytes)
        self._options = options

    def load(self, makers: Makers) -> tuple[Executor, Facts]:
        key = fingerprint.key(
            self._folder.path,
            packages=(*openvino.PACKAGES, *_CONVERTING),
            sources=_SOURCES,
            choices={**dataclasses.asdict(self.choices), **read_as(self._folder), "cpu": host.cpu()},
            others=weights_files(self._folder.path, steps_of(self._folder)),
        )
        loaded = self._load_warm(key)
        if loaded is None and self._options.compiles_in_child and self._cache.can_keep():
            compile_in_child(openvino.NAME, self._options)
            loaded = self._load_warm(key)
        return loaded or self._load_cold(key, makers)

    def _load_warm(self, key: str) -> tuple[Executor, Facts] | None:
        entry = self._cache.find(key)
        if entry is None:
            return None
        try:
            facts = Facts.decode(entry.facts)
            executor = self._open(entry.folder, facts.dtype)
        except Exception as error:
            self._cache.discard(key, why=one_line(error))
            return None
        logger.info("compiled model loaded from %s: %s", entry.folder, "; ".join(facts.notes))
        return executor, facts

    def _load_cold(self, key: str, makers: Makers) -> tuple[Executor, Facts]:
        from engine.cpu.conversion import build  # imports torch

        with self._cache.new_folder(_most_bytes(self._folder.path)) as target:
            converted = build.convert(self._folder, self.choices, target=target)
            opening = partial(self._open_new, target)
            executor, facts = build.examine(opening, converted, self.choices, makers=makers)
            sizes_of(self._folder, facts.dimensions)  # raises before the cache keeps anything
            self._cache.put(key, target, dataclasses.asdict(facts))
        logger.info("model compiled: %s", "; ".join(facts.notes))
        return executor, facts

    def _open_new(self, folder: Path, dtype: str) -> Executor:
        try:
            return self._open(folder, dtype)
        except Exception as error:
            raise ModelError(
                f"openvino can't compile the model: {one_line(error)}; --engine transformers may serve it"
            ) from error

    def _open(self, folder: Path, dtype: str) -> Executor:
        return openvino.open_model(folder, dtype=dtype, num_threads=self._options.num_threads)


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
