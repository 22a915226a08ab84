"""The token ids that self-tests and warm-ups run, and the sequences that a loaded model is tried with before it serves.

They are the same for all engines. Short ones show whether sequences leak into each other. One that is longer than the
model's window shows whether the window is kept, and one as long as its frequencies hold shows whether they are right. A
start may take about a second for them, so they are left out where the model is too large: `embedline verify` has them
then, and longer ones.

Classes and tokenizers treat some ids in their own way, such as padding and the mask, and texts can spell these out. So
they stand inside of sequences, and neighbours are full of them. Knows the model's folder, no engine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.machine.failures import one_line
from engine.model.detection.backbone import telling_lengths
from engine.model.detection.vocabulary import USUAL
from engine.model.json_files import Json, read_optional
from engine.model.model_folder import ModelFolder
from engine.model.weights import weights_of
from engine.types import Batch, EngineLimits, ModelError, OutputKind

if TYPE_CHECKING:
    import tokenizers

_Made = TypeVar("_Made")
Sequences = list[NDArray[np.int32]]  # [S] each
_NUM_SPECIAL = 4  # the first ids are often padding and markers
_MAX_OTHERS = 32  # added tokens without a role
_MAX_ROLES = 64
_TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")  # name the tokens that have a role
LONGEST = 1024  # tokens of what an engine tries without a reason in config.json; longer ones would take seconds
NUM_VICTIMS = 2  # sequences, from the first, whose rows are compared beside neighbours that are full of one id
# Tokens. Equal lengths are there on purpose; sums that engines round up, and more than one block of queries.
_SEQLENS = (5, 17, 1, 5, 40, 9, 30)
# Tokens of one sequence times parameters of layers. 10¹⁰ takes half a second of one core, and each is computed twice.
# On a GPU it has not been measured.
_MAX_WORK = {"cpu": 2e10, "cuda": 4e13}
_NUM_INSIDE = 8  # special ids in one sequence, or full neighbours in one batch
_MIN_SEQLEN = 3  # tokens that it takes to have an id between two others
# Tokens of one id in a neighbour. On a GPU rounding hides more, and tokens cost less.
_FULL = {"cpu": 6, "cuda": 16}
# Tokens of two sequences that are padded together, on either side of a length at which attention may become sparse.
_PADDED = (126, 144)


def arbitrary(folder: ModelFolder, seqlens: Iterable[int]) -> Sequences:
    """Arbitrary ids, the same at each start. Sequences are cut to the model's limit."""
    numbers = np.random.default_rng(seed=0)
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    return [numbers.integers(first, folder.vocab_size, min(seqlen, folder.max_seqlen), np.int32) for seqlen in seqlens]


def beginning_alike(folder: ModelFolder, originals: Sequences) -> Batch | None:
    """Each of these, one as long that goes on with other ids, and a short one that begins as both do.

    Those that are too short are left out. None if all are, or the vocabulary is too small.
    """
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    if folder.vocab_size - first < 2:  # there are no other ids
        return None
    sequences, shared = [], [0]
    for original in originals:
        most = 2 * len(original) // 3
        least = most // 2
        if least:
            others = first + (original - first + 1) % (folder.vocab_size - first)
            sequences += [original, np.append(original[:most], others[most:])]
            sequences.append(np.append(original[:least], others[least]))
            shared += [most, least, 0]
    if not sequences:
        return None
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    token_ids = np.concatenate(sequences).astype(np.int32)
    return Batch("", OutputKind.POOLED, token_ids, cu_seqlens, shared=np.array(shared[:-1], np.int32))


def special(folder: ModelFolder) -> tuple[list[int], list[int]]:
    """Ids that a class or a tokenizer may treat in its own way, ascending: the first four with those that have a role
    (padding, mask, …), and some of the other added tokens. Raises ModelError if a file can't be read."""
    where = folder.weights_folder
    added = _added(read_optional(where / _TOKENIZER))
    named = {text for file in TOKENIZER_FILES for text in _named(read_optional(where / file))}
    named.update(*USUAL.values())
    found = {*range(_NUM_SPECIAL), *_in_config(folder.config), *(added[name] for name in named & added.keys())}
    roles = sorted(token_id for token_id in found if 0 <= token_id < folder.vocab_size)[:_MAX_ROLES]
    others = sorted(token_id for token_id in set(added.values()) - found if 0 <= token_id < folder.vocab_size)
    return roles, others[:: max(1, -(-len(others) // _MAX_OTHERS))]


def _in_config(config: Json) -> Iterator[int]:
    """Ids that config.json names, also in the part of a text model."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _in_config(value)
        elif name.endswith(("_token_id", "_token_ids", "_token_index")):
            yield from (each for each in (value if isinstance(value, list) else [value]) if type(each) is int)


def _named(config: Json) -> Iterator[str]:
    """The texts of tokens that have a role, such as mask_token."""
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            yield text


def _added(tokenizer: Json) -> dict[str, int]:
    """The added tokens' ids."""
    tokens: Any = tokenizer.get("added_tokens")
    entries = tokens if isinstance(tokens, list) else []
    return {
        entry["content"]: entry["id"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and type(entry.get("id")) is int
    }


def largest_batch(folder: ModelFolder, limits: EngineLimits) -> Sequences:
    """Arbitrary ids of as many tokens as a batch may have, in sequences of `limits.max_seqlen`."""
    num_seqs, rest = divmod(limits.max_num_tokens, limits.max_seqlen)
    seqlens = [limits.max_seqlen] * num_seqs + [rest] * (rest > 0)
    return arbitrary(folder, seqlens[: limits.max_num_seqs])


def of_texts(folder: ModelFolder, texts: Sequence[str], *, max_seqlen: int) -> Sequences:
    """Each text's ids with special tokens, cut to `max_seqlen` and to the model's limit. If the folder has no
    tokenizer: arbitrary ids of similar lengths. Raises ModelError if the tokenizer can't be read."""
    if not has_tokenizer(folder):
        return arbitrary(folder, (min(len(text.split()) + 2, max_seqlen) for text in texts))

    def encoded(tokenizer: "tokenizers.Tokenizer") -> Sequences:
        tokenizer.enable_truncation(min(folder.max_seqlen, max_seqlen))
        given = [text.lower() if folder.do_lower_case else text for text in texts]
        return [np.array(encoding.ids, np.int32) for encoding in tokenizer.encode_batch(given)]

    return by_tokenizer(folder, encoded)


def has_tokenizer(folder: ModelFolder) -> bool:
    """Whether there is a tokenizer.json."""
    return (folder.weights_folder / _TOKENIZER).is_file()


def by_tokenizer(folder: ModelFolder, make: "Callable[[tokenizers.Tokenizer], _Made]") -> _Made:
    """What `make` makes with the folder's tokenizer, which does not pad. Raises ModelError if it can't."""
    import tokenizers

    file = folder.weights_folder / _TOKENIZER
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        return make(tokenizer)
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{file} can't be used: {one_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Trial:
    """Sequences, and what they leave out."""

    sequences: Sequences  # of arbitrary ids
    special: Sequences  # all special ids, each between two arbitrary ones; a class may not run on some of them
    neighbours: tuple[Sequences, ...]  # each in a batch with the first NUM_VICTIMS sequences
    notes: tuple[str, ...]  # for /info


def trial(
    folder: ModelFolder, *, kind: str, seqlens: Iterable[int] = (), is_whole: bool = True, has_longest: bool = True
) -> Trial:
    """kind: of the device, "cpu" or "cuda". seqlens: more lengths, which the engine can afford. is_whole: False where
    special ids and the longest sequence have been tried at another start. has_longest: False where no code depends on
    the length beyond what config.json says.

    Raises ModelError if a file of the folder can't be read.
    """
    telling = telling_lengths(folder.config, folder.max_seqlen)
    affordable = int(_MAX_WORK[kind] / num_layer_parameters(folder))
    longest = max(affordable, *seqlens, 0)
    tried = [length for length in telling if length <= longest]
    left_out = [length for length in telling if length > longest]
    note = (
        f"the self-test at load left out texts of {left_out[-1]} tokens, which would show a wrong window or wrong "
        f"frequencies: this model needs too long for them; `embedline verify` has them"
        if left_out
        else ""
    )
    lengths = (*_SEQLENS, *tried, *seqlens)
    if not is_whole:
        return Trial(arbitrary(folder, lengths), [], (), (note,) if note else ())
    roles, others = special(folder) if folder.max_seqlen >= _MIN_SEQLEN else ([], [])
    sequences = arbitrary(folder, lengths)
    known = {len(sequence) for sequence in sequences}
    more = [sequence for sequence in longer(folder, kind=kind) if len(sequence) not in known] if has_longest else []
    return Trial(
        [*sequences, *more],
        list(_inside(folder, [*roles, *others])),
        tuple(_neighbours(folder, roles, others, num_full=_FULL[kind])),
        (note,) if note else (),
    )


def longer(folder: ModelFolder, *, kind: str) -> Sequences:
    """One as long as any engine tries, and two that are padded to one length; of those that a start can afford."""
    most = min(int(_MAX_WORK[kind] / num_layer_parameters(folder)), folder.max_seqlen)
    lengths = {min(most, LONGEST), *(min(most, length) for length in _PADDED)}
    return arbitrary(folder, (length for length in sorted(lengths) if length > max(_SEQLENS)))


def num_layer_parameters(folder: ModelFolder) -> int:
    """The parameters without the tables of tokens, which cost nothing."""
    num_parameters = sum(weights_of(folder.weights_folder).num_parameters.values())
    return max(num_parameters - folder.vocab_size * folder.hidden_size, 1)


def _inside(folder: ModelFolder, special_ids: list[int]) -> Iterator[NDArray[np.int32]]:
    """At the end there is an arbitrary one: heads of some classes look for padding there."""
    for ids in _parts(special_ids, max(1, min(_NUM_INSIDE, (folder.max_seqlen - 1) // 2))):
        (sequence,) = arbitrary(folder, [2 * len(ids) + 1])
        sequence[1::2] = ids[: len(sequence) // 2]
        yield sequence


def _neighbours(folder: ModelFolder, roles: list[int], others: list[int], *, num_full: int) -> Iterator[Sequences]:
    """Full of one id each. Those with a role have a batch of their own, of which they are the larger part."""
    for ids in (*_parts(roles, 1), *_parts(others, _NUM_INSIDE)):
        neighbours = arbitrary(folder, [num_full + 2] * len(ids))
        for token_id, neighbour in zip(ids, neighbours, strict=True):
            neighbour[1:-1] = token_id
        yield neighbours


def _parts(ids: list[int], size: int) -> Iterator[list[int]]:
    return (ids[begin : begin + size] for begin in range(0, len(ids), size))
