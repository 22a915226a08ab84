"""Generative rerankers: one raw score a sequence, yes minus no, from the scores of the next token.

Only these two rows of the vocabulary are kept and computed.

Shapes: T tokens of all sequences, B sequences, D numbers a row.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.model.tasks import AnswerScore
from engine.rows.with_torch import on_device
from engine.transformers.forward import Maker
from engine.transformers.heads.library_head import LibraryHead
from engine.transformers.reference import answer_score, entries_of
from engine.types import Batch, Rows


def next_token_score(whole: PreTrainedModel, head: AnswerScore) -> tuple[Maker, str]:
    """The maker of LOGITS, and a note about it.

    The maker does not refer to `whole`, whose layers may be changed afterwards.
    """
    entries = entries_of(head)
    library_head = LibraryHead(whole, entries=entries)
    asked = " less ".join(map(str, entries))
    note = f"scores: token {asked} as {library_head.name} would go on after the last token"
    return _AnswerScore(library_head), note


class _AnswerScore:
    """See Maker."""

    def __init__(self, library_head: LibraryHead) -> None:
        self._library_head = library_head

    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        last = on_device(batch.cu_seqlens[1:] - 1, token_rows.device)
        token_ids = torch.zeros((batch.num_seqs, 1), dtype=torch.int64, device=token_rows.device)
        scores = self._library_head(token_rows[last][:, None], token_ids)[:, -1]
        return Rows(answer_score(scores).cpu().numpy())
