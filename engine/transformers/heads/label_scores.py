"""Raw scores by the library's own heads: of sequences (rerankers, classifiers, reward models) and of tokens.

A sequence head gets all rows of a sequence and uses one of them, or their mean. No configuration says which, so a few
sequences are tried: if one row gives the scores of all rows, all sequences of a batch are scored at once. Knows nothing
of how token rows are computed.

Shapes: T tokens of all sequences, B sequences, S tokens of one, D numbers a row, L raw scores.
"""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from engine.machine.failures import one_line
from engine.model.tasks import SequenceScores, TokenScores
from engine.rows.with_torch import on_device, pool
from engine.transformers.forward import Maker
from engine.transformers.heads.library_head import LibraryHead
from engine.transformers.reference import Reference, Scores
from engine.types import Batch, ModelError, OutputKind, Rows

_Way = Callable[[LibraryHead, Tensor, Batch], Tensor]  # token rows [T, D] to raw scores [B, L]

_SAME = 1e-3  # largest difference, relative to the spread of the scores; with the wrong rows it is near 1
# Largest difference, relative to the largest score, or to 1 if that is more.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 2e-1}


def sequence_scores(whole: PreTrainedModel, head: SequenceScores, reference: Reference) -> tuple[Maker, str]:
    """The maker of LOGITS, and a note about it. Raises ModelError.

    The maker does not refer to `whole`, whose layers may be changed afterwards.
    """
    expected = reference.scores[OutputKind.LOGITS]
    _check_labels(head, expected)
    library_head = LibraryHead(whole)
    try:
        scores = _on_all(library_head, reference.token_rows, reference.batch)
    except Exception as error:  # a class can require anything of its bare transformer
        raise ModelError(f"the head of {library_head.name} can't be run on its own: {one_line(error)}") from error
    difference = (scores - expected.values).abs().max().item()
    if not difference <= _TOLERANCE[reference.token_rows.dtype] * max(1.0, expected.scale):
        raise ModelError(
            f"the head of {library_head.name} can't be run on its own: its scores differ by {difference:.1e} "
            "from those of the whole model"
        )
    chosen = _choose(library_head, reference, scores)
    note = f"scores: the head of {library_head.name} on {chosen}; the self-test agrees"
    return _SequenceScores(library_head, _WAYS.get(chosen, _on_all)), note


def _choose(head: LibraryHead, reference: Reference, expected: Tensor) -> str:
    """A key of _WAYS, or _ALL, which is always right but slower."""
    differences = {
        name: (way(head, reference.token_rows, reference.batch) - expected).abs().max().item()
        for name, way in _WAYS.items()
    }
    nearest = min(differences, key=lambda name: differences[name])
    spread = (expected - expected.mean(dim=0)).abs().max().item()
    return nearest if differences[nearest] <= _SAME * spread else _ALL


class _SequenceScores:
    """See Maker."""

    def __init__(self, library_head: LibraryHead, way: _Way) -> None:
        self._library_head = library_head
        self._way = way

    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        return Rows(self._way(self._library_head, token_rows, batch).cpu().numpy())


def token_scores(whole: PreTrainedModel, head: TokenScores, reference: Reference) -> tuple[Maker, str]:
    """The maker of TOKEN_LOGITS, and a note about it. Raises ModelError.

    The maker does not refer to `whole`, whose layers may be changed afterwards.
    """
    _check_labels(head, reference.scores[OutputKind.TOKEN_LOGITS])
    library_head = LibraryHead(whole)
    return _TokenScores(library_head), f"scores: the head of {library_head.name} on each token's row"


def _check_labels(head: SequenceScores | TokenScores, expected: Scores) -> None:
    num_scores = expected.values.shape[1]
    if num_scores != len(head.labels):
        raise ModelError(f"config.json names {len(head.labels)} labels, but the head gives {num_scores} scores")


class _TokenScores:
    """See Maker."""

    def __init__(self, library_head: LibraryHead) -> None:
        self._library_head = library_head

    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        token_ids = on_device(batch.token_ids, token_rows.device)
        scores = self._library_head(token_rows[None], token_ids[None])[0]
        return Rows(scores.cpu().numpy(), batch.cu_seqlens)


def _on_first(head: LibraryHead, token_rows: Tensor, batch: Batch) -> Tensor:
    return _on_rows(head, token_rows[on_device(batch.cu_seqlens[:-1], token_rows.device)])


def _on_last(head: LibraryHead, token_rows: Tensor, batch: Batch) -> Tensor:
    return _on_rows(head, token_rows[on_device(_last(batch, head.pad_id), token_rows.device)])


def _on_mean(head: LibraryHead, token_rows: Tensor, batch: Batch) -> Tensor:
    return _on_rows(head, pool(token_rows, on_device(batch.cu_seqlens, token_rows.device), poolings=("mean",)))


_WAYS: dict[str, _Way] = {
    "the first token's row": _on_first,
    "the last token's row": _on_last,
    "the mean of the tokens' rows": _on_mean,
}
_ALL = "all tokens' rows, one sequence after the other"


def _on_all(head: LibraryHead, token_rows: Tensor, batch: Batch) -> Tensor:
    """All rows of a sequence at a time, for a class that does more than any of _WAYS."""
    token_ids = on_device(batch.token_ids, token_rows.device)[None]
    bounds = itertools.pairwise(batch.cu_seqlens.tolist())
    return torch.cat([head(token_rows[None, start:end], token_ids[:, start:end]) for start, end in bounds])


def _on_rows(head: LibraryHead, rows: Tensor) -> Tensor:
    """One row [B, D] a sequence, as if it were the whole sequence."""
    return head(rows[:, None], torch.zeros((len(rows), 1), dtype=torch.int64, device=rows.device))


def _last(batch: Batch, pad_id: int | None) -> NDArray[np.int64]:
    """The index [B] of the last token of each sequence that is not the padding token.

    If a text ends with that token, the library takes it for padding, too. If a sequence has no other token, the library
    uses the first.
    """
    starts, ends = batch.cu_seqlens[:-1], batch.cu_seqlens[1:]
    if pad_id is None:
        return ends.astype(np.int64) - 1
    place = np.where(batch.token_ids == pad_id, 0, np.arange(batch.num_tokens))
    return np.maximum(np.maximum.reduceat(place, starts), starts)
