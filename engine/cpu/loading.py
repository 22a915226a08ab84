"""Loads a CPU engine from the cache, or converts the model first; and says how many streams may compute the longest
sequences at the same time, so that their values fit into memory. Imports neither torch nor transformers.

OpenVINO keeps for each stream what its longest sequence took, so a limit on what is computed at the same time would not
hold. Only some streams compute long sequences, where memory is short.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from engine.cpu import bert, openvino, portable
from engine.cpu import converted as converted_file
from engine.cpu.all_cores import least_tokens
from engine.cpu.child import ConversionProcess
from engine.cpu.converted import Converted
from engine.cpu.converting import convert
from engine.cpu.engine import DEPTH, OpenVinoEngine
from engine.cpu.lora import Loras, inputs_of
from engine.cpu.offer import CompileOptions, Options, check, check_outputs, compile_options_of
from engine.cpu.openvino import Executor
from engine.cpu.outputs import Makers, makers_of, sizes_of, steps_of
from engine.cpu.selftest import Facts, examine
from engine.cpu.shared_prefixes import GROUP_TOKENS
from engine.machine import cores, host
from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.model.json_files import number_in
from engine.model.model_folder import ModelFolder, read_as, read_with
from engine.model.tasks import VocabularyWeights
from engine.model.weights import step_files, weights_of
from engine.registry import ENGINES
from engine.store import fingerprint
from engine.store.cache import Cache, Entry, check_room
from engine.types import EngineLimits, ModelError, ModelInfo, OnStage, OutputKind, untold

logger = logging.getLogger("embedline.engine")

# The format of entries in the cache. Raise it when the same model would have another graph, other rows, another result
# of the self-test, or other facts in the manifest.
_FORMAT = 3

_SHARE = 0.5  # of the memory; the rest is for weights, short sequences and other processes
# Numbers that a stream keeps of a token, for each hidden size: 25 to 27 were measured with BERT of 384 to 1,024 numbers
# and up to 8,192 tokens, in float32, and 17 in bfloat16.
_NUM_HIDDEN_COPIES = 28
_NUM_VOCABULARY_COPIES = 2  # the scores, and the scores with padding masked
# These add a mask with a number for each score: engine.transformers.attention.
_WITH_BIASES = frozenset(("jina_bert", "mt5", "t5"))
_NUM_BIAS_COPIES = 2  # by head and distance, and with padding masked
_USUAL_HEAD = 64  # numbers a head, if config.json does not give the number of heads


def num_long_streams(folder: ModelFolder, *, num_threads: int, has_vocabulary_scores: bool = False) -> int:
    """The number of `num_threads` streams for which the longest sequences fit into memory; at least one.

    A sequence of S tokens takes float32 arrays: _NUM_HIDDEN_COPIES of [S, hidden_size], and its scores:
    _NUM_BIAS_COPIES of [num_heads, S, S] if they get biases by position, and _NUM_VOCABULARY_COPIES of [S, vocab_size]
    if its tokens get scores of the vocabulary. Several engines share the memory in proportion to their cores. Raises
    ModelError if the scores of a single sequence do not fit; the message names a length of which they do.
    """
    num_copies = _NUM_BIAS_COPIES * (folder.architecture in _WITH_BIASES)
    room = _SHARE * host.memory() * min(1, num_threads / cores.usable())
    room /= 2 if folder.loras else 1  # what the longest sequence took is kept for the base, and with an adapter again
    bytes_of_square = 4 * num_copies * _num_heads(folder)
    bytes_of_vocabulary = 4 * _NUM_VOCABULARY_COPIES * folder.vocab_size * has_vocabulary_scores

    def scores(seqlen: int) -> float:
        return bytes_of_square * seqlen**2 + bytes_of_vocabulary * seqlen

    def all_of(seqlen: int) -> float:
        return scores(seqlen) + 4 * _NUM_HIDDEN_COPIES * folder.hidden_size * seqlen

    longest = folder.max_seqlen
    if scores(longest) > room:
        raise ModelError(f"{_could_take(longest, scores(longest), room)}; {_fitting(longest, scores, room)}")
    if all_of(longest) > room:
        logger.warning("%s; %s", _could_take(longest, all_of(longest), room), _fitting(longest, all_of, room))
    return max(1, min(num_threads, int(room / all_of(longest))))


def _could_take(seqlen: int, num_bytes: float, room: float) -> str:
    taken, left = f"{num_bytes / 1e9:.1f} GB", f"{room / 1e9:.1f} GB"
    return f"a sequence of {seqlen} tokens could take {taken} of memory, and {left} are for it"


def _fitting(longest: int, needed: Callable[[int], float], room: float) -> str:
    fitting = next((seqlen for seqlen in range(longest, 1, -1) if needed(seqlen) <= room), 1)
    return f"--max-input-length {fitting} fits"


def _num_heads(folder: ModelFolder) -> int:
    return number_in(folder.config, "num_attention_heads", "n_heads", "n_head", "num_heads") or max(
        1, folder.hidden_size // _USUAL_HEAD
    )


# Tokens of a batch for each stream. Twice as many would save another 2 % of padding at most.
_TARGET_NUM_TOKENS = 2048
_GRAPH_BYTES = 16 << 20


import_library = openvino.import_openvino  # for engine.registry


def load(*, name: str, reason: str, options: LoadOptions, on_stage: OnStage = untold) -> OpenVinoEngine:
    """Load a model into the openvino engine. Raises ModelError with one line."""
    check(options)
    folder = read_with(options)
    check_outputs(folder, options)
    batch = options.batch_limits(folder.max_seqlen)
    num_long = num_long_streams(
        folder,
        num_threads=options.num_threads,
        has_vocabulary_scores=any(isinstance(head, VocabularyWeights) for head in folder.heads),
    )
    makers = makers_of(folder)
    loader = _Loader(folder, options, on_stage, num_long=num_long)
    executor, facts = loader.load(makers)
    sizes = sizes_of(folder, facts.dimensions)
    info = _info(folder, loader.compile_options.quantization, facts, sizes, name=name, reason=reason)
    num_streams = len(executor.streams)
    limits = EngineLimits(
        **batch,
        depth=DEPTH,
        puts_urgent_first=True,
        overlaps=True,
        target_num_tokens=min(batch["max_num_tokens"], num_streams * _TARGET_NUM_TOKENS),
        group_tokens=min(batch["max_num_tokens"], num_streams * GROUP_TOKENS) if facts.shares_prefixes else 0,
    )
    return OpenVinoEngine(executor, makers, info=info, limits=limits, pad_id=facts.pad_id, sizes=sizes)


def export(options: LoadOptions, target: Path) -> tuple[str, Facts]:
    """Convert a model, test it on this CPU, and write it into the empty folder `target` for any. Returns its key, and
    the results of the test. Raises ModelError with one line."""
    check(options)
    folder = read_with(options)
    check_outputs(folder, options)
    check_room(target, _most_bytes(folder.path))
    makers, compile_options = makers_of(folder), compile_options_of(folder, options, for_any_cpu=True)
    converted = convert(folder, compile_options, target=target, num_threads=options.num_threads)
    opening = partial(_Loader(folder, options, untold, num_long=1).open_new, target)
    _, facts = examine(opening, converted, compile_options_of(folder, options), makers=makers)
    sizes_of(folder, facts.dimensions)
    return portable.write(target, converted, folder, compile_options), facts


class _Loader:
    """Loads one compiled model, from the cache if it is there."""

    def __init__(self, folder: ModelFolder, options: LoadOptions, on_stage: OnStage, *, num_long: int) -> None:
        """num_long: see `num_long_streams`."""
        self.compile_options = compile_options_of(folder, options)
        self._on_stage = on_stage
        self._folder = folder
        root = Path(options.cache_dir, "compiled") if options.cache_dir else None
        self._cache = Cache(root, max_bytes=options.max_cache_bytes)
        self._options = options
        self._own = options.own_of(openvino.NAME, Options)
        self._num_long = num_long
        self._loras = Loras(folder.loras) if folder.loras else None

    def load(self, makers: Makers) -> tuple[Executor, Facts]:
        self._on_stage("compiled model")
        if (entry := self._own.compiled_folder) is not None and (taken := self._load_portable(entry, makers)):
            return taken
        key = _cache_key(self._folder, self.compile_options)
        loaded = self._cache.read(key, self._load_warm, damaged=(Exception,))  # a library may raise any
        return loaded or self._load_cold(key, makers)

    def _convert(self, target: Path) -> Converted:
        if not self._own.compiles_in_child:
            return convert(self._folder, self.compile_options, target=target, num_threads=self._options.num_threads)
        with ConversionProcess(self._options, target) as child:
            openvino.import_openvino()  # while the child imports its own libraries
            child.wait()
        converted = converted_file.read(target)
        (target / converted_file.FILE).unlink()
        return converted

    def _load_portable(self, entry: Path, makers: Makers) -> tuple[Executor, Facts] | None:
        """Load what `embedline compile` wrote; None, after a warning, where that can't be used here."""
        try:
            converted = portable.read(entry, self._folder, self.compile_options)
            opening = partial(self.open_new, entry)
            executor, facts = examine(opening, converted, self.compile_options, makers=makers, is_new=False)
            openvino.release_file(entry)
            sizes_of(self._folder, facts.dimensions)
        except Exception as error:  # a damaged manifest can cause any error
            logger.warning("the compiled model in %s is not used: %s; it is made anew", entry, one_line(error))
            return None
        logger.info("compiled model loaded from %s, and tested on this CPU: %s", entry, "; ".join(facts.notes))
        return executor, facts

    def _load_warm(self, entry: Entry) -> tuple[Executor, Facts]:
        facts = Facts.decode(entry.facts)
        is_known = facts.num_threads == self._options.num_threads
        executor = self._open(entry.folder, facts.dtype, least_wide=facts.least_wide if is_known else None)
        logger.info("compiled model loaded from %s: %s", entry.folder, "; ".join(facts.notes))
        return executor, facts

    def _load_cold(self, key: str, makers: Makers) -> tuple[Executor, Facts]:
        with self._cache.new_folder(_most_bytes(self._folder.path)) as target:
            self._on_stage("conversion")
            converted = self._convert(target)
            self._on_stage("self-test")
            opening = partial(self.open_new, target)
            executor, facts = examine(opening, converted, self.compile_options, makers=makers)
            openvino.release_file(target)
            sizes_of(self._folder, facts.dimensions)  # raises before the cache keeps anything
            self._cache.put(key, target, dataclasses.asdict(facts))
        logger.info("model compiled: %s", "; ".join(facts.notes))
        return executor, facts

    def open_new(self, folder: Path, dtype: str, *, has_wide: bool = True) -> Executor:
        """See engine.cpu.selftest.Open. Raises ModelError."""
        try:
            return self._open(folder, dtype, least_wide=None if has_wide else 0)
        except Exception as error:
            raise _cannot_compile(error) from error

    def _open(self, folder: Path, dtype: str, *, least_wide: int | None) -> Executor:
        """Compile it, for all cores only where they gain. least_wide: see Executor; None = measure it."""
        num_threads = self._options.num_threads
        executor = openvino.open_model(
            folder, dtype=dtype, num_threads=num_threads, has_wide=least_wide != 0, loras=self._loras
        )
        executor = dataclasses.replace(executor, num_long_streams=self._num_long)
        if executor.wide is None:
            return executor
        if least_wide is None:
            least_wide = least_tokens(executor, max_seqlen=self._folder.max_seqlen)
        if least_wide == 0:
            return dataclasses.replace(executor, wide=None, least_wide=0)
        return dataclasses.replace(executor, least_wide=least_wide)


def _cannot_compile(error: Exception) -> ModelError:
    return ModelError(f"openvino can't compile the model: {one_line(error)}; --engine transformers may serve it")


def _cache_key(folder: ModelFolder, compile_options: CompileOptions) -> str:
    """The key in the cache. Costs milliseconds: see engine.store.fingerprint.key. Raises OSError, and ModelError if a
    file of the weights is wrong."""
    converters = () if bert.described(folder) else ENGINES[openvino.NAME].converters  # what else makes it
    return fingerprint.key(
        folder.path,
        format_number=_FORMAT,
        packages=(*openvino.PACKAGES, *converters),
        choices={
            **dataclasses.asdict(compile_options),
            **read_as(folder),
            "cpu": host.cpu(),
            **({"loras": inputs_of(folder.loras)} if folder.loras else {}),
        },
        others=[*step_files(folder.path, steps_of(folder)), *folder.adapter_files],
    )


def _most_bytes(folder: Path) -> int:
    """The bytes of the converted model on the disk: every number as a float32, and the graph."""
    return 4 * sum(weights_of(folder).num_parameters.values()) + _GRAPH_BYTES


def _info(
    folder: ModelFolder, quantization: str, facts: Facts, sizes: Mapping[OutputKind, int], *, name: str, reason: str
) -> ModelInfo:
    dtype = facts.dtype if quantization == "none" else quantization
    return dataclasses.replace(
        folder.info(name=name, engine=openvino.NAME, reason=reason, dtype=dtype, device="cpu", notes=facts.notes),
        dimensions=sizes.get(OutputKind.POOLED, folder.dimensions),
        token_dimensions=sizes.get(OutputKind.TOKENS),
        is_padded=True,  # mini-batches are padded
        shares_prefixes=facts.shares_prefixes,
    )
