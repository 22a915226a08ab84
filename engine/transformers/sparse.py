"""Sparse rows: a weight for each entry of the vocabulary that fits a text.

SPLADE: the scores of a few thousand tokens would take a gigabyte. So the head of the masked language model computes
slices of the tokens, and keeps only the maxima or sums of each sequence, and of these only the nonzero ones. It
computes in the model's dtype, because the head is large. bge-m3 has one weight for each token instead, of which each
id keeps the largest.

Shapes: T tokens of a batch, B sequences, D numbers a row, V entries of the vocabulary, P parts of sequences in a slice,
N entries that are not zero.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.model.model_folder import ModelFolder
from engine.model.tasks import TokenWeights, VocabularyWeights
from engine.rows.with_numpy import largest_of_each_id
from engine.rows.with_torch import load_modules
from engine.transformers.forward import Maker
from engine.transformers.library_heads import LibraryHead
from engine.types import Batch, Rows

_SLICE_NUMBERS = 1 << 23  # scores in a slice: 32 MiB in float32
_TIMES_ON_GPU = 4  # larger slices on a GPU, because each one waits for its result


def vocabulary_weights(whole: PreTrainedModel, head: VocabularyWeights) -> tuple[Maker, str]:
    """The maker of SPARSE, and a note about it. It gives ragged rows [N, 2]: vocabulary ids in order, and weights.

    `whole` is the library's …ForMaskedLM. Raises ModelError if it has no bare transformer inside.
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
            places = weights.nonzero()  # of NaN, too, to be noticed
            found = weights[places[:, 0], places[:, 1]]
            entries.append(torch.stack((places[:, 1].float(), found), dim=1).cpu().numpy())
            counts.append(np.bincount(places[:, 0].cpu().numpy(), minlength=len(weights)))
        offsets = np.cumsum([0, *np.concatenate(counts)], dtype=np.int32)
        return Rows(np.concatenate(entries), offsets)

    def _weights(self, token_rows: Tensor, bounds: list[int]) -> Iterator[Tensor]:
        """Weights [P, V] of some sequences at a time, in order."""
        unfinished: Tensor | None = None  # [V], of a sequence that continues in the next slice
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
        """The scores of a slice, in float32. For maxima the activation comes later: the same, for less work."""
        scores = self._library_head(token_rows[None])[0].float()
        return self._activated(scores) if self._sums else scores

    def _reduced(self, rows: Tensor) -> Tensor:
        return rows.sum(dim=0) if self._sums else rows.amax(dim=0)

    def _activated(self, scores: Tensor) -> Tensor:
        """The weights of scores, computed in place."""
        scores = scores.relu_().log1p_()
        return scores.log1p_() if self._is_log_twice else scores


def token_weights(folder: ModelFolder, head: TokenWeights, device: torch.device) -> Maker:
    """Gives ragged rows [N, 2]: each token id of a sequence and its weight, in order of the ids. Raises ModelError if
    the head's file is wrong."""
    modules = load_modules(folder.path, [head.step(folder.hidden_size)], device=device)
    unused_ids = np.array(head.unused_ids, np.int32)

    @torch.inference_mode()
    def of_tokens(token_rows: Tensor, batch: Batch) -> Rows:
        weights = modules(token_rows)[:, 0].cpu().numpy()
        return Rows(*largest_of_each_id(weights, batch.token_ids, np.diff(batch.cu_seqlens), unused_ids=unused_ids))

    return of_tokens
