"""The sequences that a loaded model is tried with before it serves, the same for all engines.

Short ones show whether sequences leak into each other. One that is longer than the model's window shows whether the
window is kept, and one as long as its frequencies hold shows whether they are right. A start may take about a second
for them, so they are left out where the model is too large: `embedline verify` has them then, and longer ones.

Classes and tokenizers treat some ids in their own way, such as padding and the mask, and texts can spell these out. So
they stand inside of sequences, and neighbours are full of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.model.model_folder import ModelFolder
from engine.model.telling_lengths import telling_lengths
from engine.model.weights import weights_of
from engine.selftest.sample_ids import Sequences, arbitrary, special

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
    return Trial(
        [*arbitrary(folder, lengths), *(longer(folder, kind=kind) if has_longest else [])],
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
    """Without the tables of tokens, which cost nothing."""
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
