"""Chooses by a self-test how a freshly loaded model is run: packed if that gives the rows of one sequence at a time.

Most architectures can be packed. A few have their own attention, and some mix neighbouring tokens elsewhere
(convolutions, concatenated embeddings) or take a share over the whole row (ESM's masked tokens), which no flag in
their configuration says. Then they are padded, and where that is wrong, too, each sequence is run alone. The heads are
tested with the rows.

Whether packed sequences may share what they begin with alike is tested after that: in a causal model the rows of a
beginning are equal whatever follows. No key of a configuration is asked, which could not tell that a convolution, a
state or a kind of attention looks ahead.

What was found out is kept on disk, so that the next start tries fewer sequences and one way to run them. It still
compares that way with one sequence at a time, as far as that costs little.
"""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from engine.machine import host
from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.model.identity import files_beside
from engine.model.model_folder import ModelFolder, read_as
from engine.rows.shared_prefixes import unique_tokens
from engine.selftest.comparison import TOLERANCE, agreement, comparable, is_near, largest_difference
from engine.selftest.sample_ids import NUM_VICTIMS, TOKENIZER_FILES, Trial, beginning_alike, longer, trial
from engine.store import fingerprint
from engine.store.cache import Cache
from engine.transformers import attention
from engine.transformers.forward import Forward, Makers, PackedForward, PaddedForward
from engine.transformers.heads import makers_of
from engine.transformers.placement import Placement
from engine.transformers.prepack import prepack
from engine.transformers.reference import Reference, Scores, State, run_adapted, run_alone
from engine.types import Batch, ModelError, OutputKind, Rows
from wire.dataclass_json import from_json, to_json

logger = logging.getLogger("embedline.engine")

PACKED, PADDED, ALONE = "packed", "padded", "one by one"
_WAYS = {
    PACKED: "sequences are computed side by side without padding; the self-test agrees",
    PADDED: "sequences of like length are padded to the longest, for",
    ALONE: "each sequence is computed alone, for",
}

_KEEPS_STATE = "its class keeps from one text what changes the next, which is put back before each"
_FULL_OF_ONE = "one sequence at a time where a neighbour is full of one token"
_BESIDE_OTHERS = "beside other neighbours where one is full of one token"
_FLOAT32_TOLERANCE_ON_GPU = 1e-4  # each shape has its own kernel, which adds in its own order
_NUM_ADAPTED = 4  # sequences that are tried with adapters; all of many would take long
_SCORES_FACTOR = 10  # times the tolerance: a small score can be the difference of large numbers

_FOLDER = "self-tests"  # within --compiled-cache
_MAX_ENTRIES = 256  # of a file each
# An entry's format. Raise it when the self-test would find out something else for the same model, or a SelftestResult
# has other fields.
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """The result of a self-test."""

    way: str  # a key of _WAYS
    why_not: str  # the ways before it are none; "" if it is the first
    keeps_state: bool  # see Reference
    longest: int  # tokens of the longest sequence that was tried
    notes: tuple[str, ...]  # what it left out
    shares_prefixes: bool = False  # see Batch.shared

    @property
    def note(self) -> str:
        """The note for people."""
        prefixes = "; what texts of a request begin with alike is computed once" if self.shares_prefixes else ""
        return f"{self.way}: {_WAYS[self.way]}{self.why_not and ' '}{self.why_not}{prefixes}"


@dataclass(frozen=True, slots=True)
class ForwardChoice:
    """How a model is run, and why."""

    forward: Forward
    makers: Makers  # for each of the folder's outputs
    notes: tuple[str, ...]
    is_reentrant: bool  # whether several threads may run it at the same time
    finding: SelftestResult


def choose_forward(
    whole: PreTrainedModel,
    folder: ModelFolder,
    *,
    prepacks: bool = False,
    known: SelftestResult | None = None,
    least_tried: int = 0,
) -> ForwardChoice:
    """Try one way after the other, and compare them with one sequence at a time through the layers as they were loaded.

    whole: see `loading.load_model`. prepacks: rearrange weights for speed. known: what another start found out with
    more sequences, so that only its way is tried. least_tried: tokens of a sequence that must be tried. Raises
    ModelError if no way is right; the model must not be used then.
    """
    model = whole.base_model
    assert isinstance(model, PreTrainedModel)
    # whether its own attention obeys masks alone, so that no long sequence is needed to learn what it sees
    is_told = bool(model._supports_sdpa and model._can_set_attn_implementation())
    tried = trial(
        folder,
        kind=whole.device.type,
        seqlens=(least_tried,) if least_tried else (),
        is_whole=known is None,
        has_longest=not is_told,
    )
    reference = dataclasses.replace(run_alone(whole, folder, tried), adapted=_with_adapters(whole, folder, tried))
    made = makers_of(folder, whole, reference)
    keeps_state = reference.keeps_state or (known is not None and known.keeps_state)
    prepacked = (prepack(model),) if prepacks and not keeps_state else ()
    if keeps_state:
        model.register_forward_pre_hook(State(model))
    # what it keeps belongs to one text, not to the longest of those beside it
    ways = (known.way,) if known else (ALONE,) if keeps_state else tuple(_WAYS)
    forward, way, why_not = _first_that_agrees(ways, model, folder, reference, made.makers)
    longest = max(map(len, tried.sequences))
    if way == PADDED and is_told and known is None and (more := longer(folder, kind=whole.device.type)):
        longest = max(longest, *map(len, more))
        problem = _of_padded(forward, run_alone(whole, folder, Trial(more, [], (), ())), made.makers)
        if problem:
            forward, way, _ = _first_that_agrees((ALONE,), model, folder, reference, made.makers)
            why_not = f"{why_not} and {PADDED} {problem}"
    why_not = _KEEPS_STATE if keeps_state else why_not
    shares = _share_prefixes(forward, folder, made.makers, tried, known)
    finding = known or SelftestResult(way, why_not, keeps_state, longest, reference.notes)
    finding = dataclasses.replace(finding, shares_prefixes=shares)
    notes = (finding.note, *prepacked, *made.notes, *finding.notes)
    return ForwardChoice(forward, made.makers, notes, not keeps_state and _is_reentrant(model), finding)


def _with_adapters(whole: PreTrainedModel, folder: ModelFolder, tried: Trial) -> Reference | None:
    """Of the first sequences with some adapters, and one with none. Raises ModelError if one does not run."""
    if not folder.loras:
        return None
    spread = np.linspace(len(folder.loras), 0, min(len(folder.loras) + 1, _NUM_ADAPTED)).astype(np.int32)
    sequences = tried.sequences[:_NUM_ADAPTED]
    return run_adapted(whole, folder, sequences, np.resize(spread, len(sequences)))


def _of_padded(forward: Forward, longer_ones: Reference, makers: Makers) -> str:
    """The fault of longer sequences that are padded, of which masks tell nothing; "" if nothing is."""
    if longer_ones.keeps_state:
        raise ModelError("transformers' class keeps from a long text what changes the next, and from a short one not")
    return _disagreement(forward, longer_ones, makers)


def _first_that_agrees(
    ways: tuple[str, ...], model: PreTrainedModel, folder: ModelFolder, reference: Reference, makers: Makers
) -> tuple[Forward, str, str]:
    """The forward, its name, and why it is none before it. Raises ModelError if none agrees."""
    problems: list[str] = []
    for way in ways:
        forward, problem = _try(way, model, folder, reference, makers)
        if forward is not None:
            return forward, way, " and ".join(problems)
        problems.append(problem)
    raise ModelError(f"the architecture {folder.architecture!r} can't be run in batches: {' and '.join(problems)}")


def _try(
    way: str, model: PreTrainedModel, folder: ModelFolder, reference: Reference, makers: Makers
) -> tuple[Forward | None, str]:
    """The forward; or None and the reason, after the model's own attention was restored."""
    if way != PACKED:
        forward: Forward = PaddedForward(model, each_alone=way == ALONE)
        problem = _disagreement(forward, reference, makers)
        return (None, f"{way} {problem}") if problem else (forward, "")
    own = model.config._attn_implementation
    if not model._can_set_attn_implementation():
        return None, f"{type(model).__name__} takes no attention function from outside"
    attention.register()
    model.set_attn_implementation(attention.PACKED)
    forward = PackedForward(model, padding_idx=folder.padding_idx)
    problem = _disagreement(forward, reference, makers)
    if not problem:
        return forward, ""
    model.set_attn_implementation(own)
    return None, f"{way} {problem}"


def _share_prefixes(
    forward: Forward, folder: ModelFolder, makers: Makers, tried: Trial, known: SelftestResult | None
) -> bool:
    """Have the forward compute common beginnings once if it may; whether it does."""
    if not isinstance(forward, PackedForward) or (known is not None and not known.shares_prefixes):
        return False
    longest = max(tried.sequences, key=len)
    trials = [tried.sequences[:NUM_VICTIMS], *([] if known else [[longest]])]
    alike = [beginning_alike(folder, each) for each in trials]
    try:
        forward.shares_prefixes = all(batch is not None and _may_share(forward, batch, makers) for batch in alike)
    except Exception:  # layers raise anything on rows that they do not expect
        forward.shares_prefixes = False
    return forward.shares_prefixes


def _may_share(forward: PackedForward, alike: Batch, makers: Makers) -> bool:
    """Whether rows of a beginning are equal whatever follows, and those of a batch if they are computed once."""
    unique = unique_tokens(alike)
    assert unique is not None
    forward.shares_prefixes = False
    apart = forward(alike)
    rows, dtype = _on_host(apart), str(apart.dtype).removeprefix("torch.")
    # sequences of one length are rounded in the same way, so in 16 bits less is tolerated than between batches
    seqlens = np.diff(alike.cu_seqlens)
    is_as_long = np.repeat(np.diff(seqlens, prepend=0) == 0, seqlens)
    strict = "float32" if dtype == "float32" else "float16"
    same = agreement(rows[is_as_long], rows[unique.first[unique.places]][is_as_long], dtype=strict)
    if not is_near(same, dtype=strict):
        return False
    forward.shares_prefixes = True
    once = forward(alike)
    outputs = [(kind, make(once, alike), make(apart, alike)) for kind, make in makers.items()]
    tolerance = _SCORES_FACTOR * _tolerance(apart)
    return is_near(agreement(_on_host(once), rows, dtype=dtype), dtype=dtype) and all(
        largest_difference(found, expected, scale=max(1.0, float(np.abs(expected).max(initial=0)))) <= tolerance
        for found, expected in (comparable(*each) for each in outputs)
    )


def _is_reentrant(model: PreTrainedModel) -> bool:
    """Some rotary embeddings keep the length of the current sequences in the module itself."""
    kinds = " ".join(str(getattr(module, "rope_type", "")) for module in model.modules())
    return "dynamic" not in kinds and "longrope" not in kinds


def _disagreement(forward: Forward, reference: Reference, makers: Makers) -> str:
    """The fault in the forward's rows or the heads' scores; "" if nothing is."""
    try:
        rows = forward(reference.batch)
        if rows.shape != reference.token_rows.shape:
            return f"gives rows of shape {tuple(rows.shape)}, not {tuple(reference.token_rows.shape)}"
        scores = {kind: makers[kind](rows, reference.batch) for kind in reference.scores}
        problem = _of_rows(rows, reference) or _of_neighbours(forward, reference)
    except Exception as error:  # layers raise anything on input that they do not support
        return f"fails with {one_line(error)}"
    if problem:
        return problem
    tolerance = _tolerance(rows)
    difference = max((_difference(scores[kind], kind, own) for kind, own in reference.scores.items()), default=0.0)
    if not difference <= _SCORES_FACTOR * tolerance:
        return f"gives scores that differ by {difference:.1e}"
    found = "" if reference.adapted is None else _disagreement(forward, reference.adapted, makers)
    return found and f"{found}, with adapters"


def _of_rows(rows: torch.Tensor, reference: Reference, what: str = "one sequence at a time") -> str:
    """rows: of the first tokens, or of all."""
    expected, dtype = reference.token_rows[: len(rows)], reference.dtype
    found = agreement(_on_host(rows), _on_host(expected), dtype=dtype)
    return "" if is_near(found, dtype=dtype) else f"differs from {what}: {found.in_words}"


def _of_neighbours(forward: Forward, reference: Reference) -> str:
    """The fault in the first sequences beside others that are full of one token."""
    if not reference.beside:
        return ""
    num_tokens = int(reference.batch.cu_seqlens[NUM_VICTIMS])
    beside_others: dict[bytes, torch.Tensor] = {}  # by what the lengths are
    for one in reference.beside:
        rows = forward(one)[:num_tokens]
        problem = _of_rows(rows, reference, _FULL_OF_ONE)
        if not problem and reference.dtype == "bfloat16":
            lengths = one.cu_seqlens.tobytes()
            if lengths not in beside_others:
                others = np.resize(one.token_ids[:num_tokens], one.num_tokens)
                beside_others[lengths] = forward(dataclasses.replace(one, token_ids=others))[:num_tokens]
            problem = _of_other_neighbours(rows, beside_others[lengths])
        if problem:
            return problem
    return ""


def _of_other_neighbours(rows: torch.Tensor, beside_others: torch.Tensor) -> str:
    """Batches of the same lengths are rounded in the same way. So a neighbour's ids show, which rounding would hide."""
    found = agreement(_on_host(rows), _on_host(beside_others), dtype="float16")
    return "" if is_near(found, dtype="float16") else f"differs from itself {_BESIDE_OTHERS}: {found.in_words}"


def _difference(rows: Rows, kind: OutputKind, expected: Scores) -> float:
    """The largest difference, relative to the largest score if that is above 1."""
    values = _on_host(expected.values)
    found = _dense(rows, values.shape[1]) if kind is OutputKind.SPARSE else rows.values
    return largest_difference(found, values, scale=max(1.0, expected.scale))


def _on_host(rows: torch.Tensor) -> NDArray[np.float32]:
    return rows.float().cpu().numpy()


def _dense(rows: Rows, num_entries: int) -> NDArray[np.float32]:
    """[B, V] of ragged [N, 2]."""
    assert rows.offsets is not None
    counts = np.diff(rows.offsets)
    dense = np.zeros((len(counts), num_entries), np.float32)
    dense[np.repeat(np.arange(len(counts)), counts), rows.values[:, 0].astype(np.int64)] = rows.values[:, 1]
    return dense


def _tolerance(rows: torch.Tensor) -> float:
    is_exact = rows.dtype is torch.float32
    return _FLOAT32_TOLERANCE_ON_GPU if is_exact and rows.is_cuda else TOLERANCE[str(rows.dtype).removeprefix("torch.")]


class SelftestCache:
    """One model's, on one kind of device."""

    def __init__(self, folder: ModelFolder, placement: Placement, options: LoadOptions) -> None:
        """Nothing is kept without options.cache_dir."""
        root = Path(options.cache_dir, _FOLDER) if options.cache_dir else None
        self._key = ""
        self._cache = Cache(root, max_entries=_MAX_ENTRIES, max_bytes=options.max_cache_bytes)
        try:
            self._key = _key(folder, placement)
        except OSError:  # the reader of the file reports what is wrong with it
            self._cache = Cache(None)
        self._least_tried = min(options.least_tried, folder.max_seqlen)

    def find(self) -> SelftestResult | None:
        """A finding; None where there is none that tried enough."""
        found = self._cache.read(self._key, lambda entry: from_json(SelftestResult, entry.facts))
        return found if found is not None and found.longest >= self._least_tried else None

    def put(self, found: SelftestResult) -> None:
        """Keep it, unless another process was first. What the disk refuses is warned of."""
        if not self._cache.can_keep():
            return
        try:
            with self._cache.new_folder() as folder:
                self._cache.put(self._key, folder, to_json(found))
        except (OSError, ModelError) as error:
            logger.warning("what the self-test has found out is not kept: %s", one_line(error))


def _key(folder: ModelFolder, placement: Placement) -> str:
    choices = {
        **read_as(folder),
        "dtype": str(placement.dtype),
        "device": torch.cuda.get_device_name(placement.device) if placement.is_gpu else host.cpu(),
        "pooling": folder.pooling,
        "steps": [str(step) for step in folder.steps],
        "heads": [str(head) for head in folder.heads],
        "max_seqlen": folder.max_seqlen,
        **({"loras": True} if folder.loras else {}),
    }
    others = [*files_beside(folder), *folder.weights_folder.glob("*.safetensors")]
    others += (folder.weights_folder / name for name in TOKENIZER_FILES)
    packages = ("torch", "transformers")
    return fingerprint.key(folder.path, format_number=_FORMAT, packages=packages, choices=choices, others=others)
