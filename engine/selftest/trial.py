"""The sequences that a loaded model is tried with before it serves, the same for all engines.

Short ones show whether sequences leak into each other. One that is longer than the model's window shows whether the
window is kept, and one as long as its frequencies hold shows whether they are right. A start may take about a second
for them, so they are left out where the model is too large: `embedline verify` has them then, and longer ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.model.model_folder import ModelFolder
from engine.model.telling_lengths import telling_lengths
from engine.model.weights import weights_of
from engine.selftest.sample_ids import Sequences, arbitrary

# Tokens. Equal lengths are there on purpose; sums that engines round up, and more than one block of queries.
_SEQLENS = (5, 17, 1, 5, 40, 9, 30)
# Tokens of one sequence times parameters of layers. 10¹⁰ takes half a second of one core, and each is computed twice.
# On a GPU it has not been measured.
_MAX_WORK = {"cpu": 2e10, "cuda": 4e13}


@dataclass(frozen=True, slots=True)
class Trial:
    """Sequences, and what they leave out."""

    sequences: Sequences
    notes: tuple[str, ...]  # for /info


def trial(folder: ModelFolder, *, kind: str, seqlens: Iterable[int] = ()) -> Trial:
    """kind: of the device, "cpu" or "cuda". seqlens: more lengths, which the engine can afford.

    Raises ModelError if config.json or the weights' headers can't be read.
    """
    telling = telling_lengths(folder.config, folder.max_seqlen)
    longest = max(_MAX_WORK[kind] / num_layer_parameters(folder), *seqlens, 0)
    tried = [length for length in telling if length <= longest]
    left_out = [length for length in telling if length > longest]
    note = (
        f"the self-test at load left out texts of {left_out[-1]} tokens, which would show a wrong window or wrong "
        f"frequencies: this model needs too long for them; `embedline verify` has them"
        if left_out
        else ""
    )
    return Trial(arbitrary(folder, (*_SEQLENS, *tried, *seqlens)), (note,) if note else ())


def num_layer_parameters(folder: ModelFolder) -> int:
    """Without the tables of tokens, which cost nothing."""
    num_parameters = sum(weights_of(folder.weights_folder).num_parameters.values())
    return max(num_parameters - folder.vocab_size * folder.hidden_size, 1)
