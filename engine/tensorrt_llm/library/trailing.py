"""Padding tokens at the end of a sequence, which classifiers of transformers take for padding wherever they come from.

There, the scored token is the last one that is not the padding token, or the first where there is no other; here it is
the last. In a causal model no token sees those after it, so leaving out the ones at the end gives the same scores.
"""

from engine.model.json_files import read_object
from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores


def pad_id_of(folder: ModelFolder) -> int | None:
    """The token that is to be left out at the end of sequences; None where none is, as for all but classifiers."""
    if not any(isinstance(head, SequenceScores) for head in folder.heads):
        return None
    pad_id = read_object(folder.path / "config.json").get("pad_token_id")
    return pad_id if type(pad_id) is int else None


def without_trailing(token_ids: list[int], pad_id: int | None) -> list[int]:
    """The token ids of one sequence without the padding tokens at their end, but at least the first."""
    end = len(token_ids)
    while pad_id is not None and end > 1 and token_ids[end - 1] == pad_id:
        end -= 1
    return token_ids[:end]
