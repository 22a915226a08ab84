"""SPLADE: a weight for each entry of the vocabulary that a text calls to mind. Knows nothing of words.

Scores of all tokens at once would take a gigabyte for a few thousand of them. So the head of the masked language model
goes over slices of the tokens, and of each slice only its sequences' maxima or sums are kept, of these only what is not
zero. It computes in the model's own type, for what it takes is not little.

Shapes: T tokens of a batch, D numbers a row, V entries of the vocabulary, P parts of sequences in a slice, N entries
that are not zero.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.model.tasks import VocabularyWeights
from engine.transformers.forward import Maker
from engine.transformers.heads.library_head import LibraryHead
from engine.types import Batch, Rows

_SLICE_NUMBERS = 1 << 23  # scores at a time: 32 MiB in float32
_TIMES_ON_GPU = 4  # as many there, where what is kept of each slice is waited for


def vocabulary_weights(whole: PreTrainedModel, head: VocabularyWeights) -> tuple[Maker, str]:
    """The maker of SPARSE, and a line about it: ragged rows [N, 2], entries of the vocabulary, by number, and weights.

    `whole` is the library's …ForMaskedLM. Raises ModelError where its parts can't be told apart.
    """
    note = f"sparse: the {head.pooling} over the tokens of what {type(whole).__name__} scores its vocabulary"
    slice_numbers = _SLICE_NUMBERS * (_TIMES_ON_GPU if whole.device.type == "cuda" else 1)
    max_tokens = max(1, slice_numbers // whole.config.get_text_config().vocab_size)
    return _VocabularyWeights(LibraryHead(whole, dtype=None), head, max_tokens=max_tokens), note


class _VocabularyWeights:
    """May be called by several threads at the same time."""

    def __init__(self, library_head: LibraryHead, head: VocabularyWeights, *, max_tokens: int) -> None:
        self._library_head = library_head
        self._max_tokens = max_tokens  # in a slice
        self._sums = head.pooling == "sum"
        self._is_log_twice = head.activation == "log1p_relu"

    @torch.inference_mode()
    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        entries, counts = [], []
        for weights in self._weights(token_rows, batch.cu_seqlens.tolist()):
            places = weights.nonzero()  # of what is not a number too, to be noticed
            found = weights[places[:, 0], places[:, 1]]
            entries.append(torch.stack((places[:, 1].float(), found), dim=1).cpu().numpy())
            counts.append(np.bincount(places[:, 0].cpu().numpy(), minlength=len(weights)))
        offsets = np.cumsum([0, *np.concatenate(counts)], dtype=np.int32)
        return Rows(np.concatenate(entries), offsets)

    def _weights(self, token_rows: Tensor, bounds: list[int]) -> Iterator[Tensor]:
        """Of the sequences in their order, some at a time: [P, V]."""
        unfinished: Tensor | None = None  # [V], of the sequence with which the next slice goes on
        number = 0
        for start in range(0, len(token_rows), self._max_tokens):
            scores = self._scores(token_rows[start : start + self._max_tokens])
            parts: list[Tensor] = []
            while number < len(bounds) - 1 and bounds[number] < start + len(scores):
                part = self._reduced(scores[max(bounds[number] - start, 0) : bounds[number + 1] - start])
                part = part if unfinished is None else self._reduced(torch.stack((unfinished, part)))
                is_finished = bounds[number + 1] <= start + len(scores)
                unfinished = None if is_finished else part
                if not is_finished:
                    break
                parts.append(part)
                number += 1
            if parts:
                found = torch.stack(parts)
                yield found if self._sums else self._activated(found)

    def _scores(self, token_rows: Tensor) -> Tensor:
        """Of a slice, in float32. A maximum of them is activated later: that is less work, and comes to the same."""
        scores = self._library_head(token_rows[None])[0].float()
        return self._activated(scores) if self._sums else scores

    def _reduced(self, rows: Tensor) -> Tensor:
        """One row [V] of rows [P, V]."""
        return rows.sum(dim=0) if self._sums else rows.amax(dim=0)

    def _activated(self, scores: Tensor) -> Tensor:
        """In place."""
        scores = scores.relu_().log1p_()
        return scores.log1p_() if self._is_log_twice else scores
