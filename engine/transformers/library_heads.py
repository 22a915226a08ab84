"""Raw scores by the heads of the library's own classes: of sequences, of tokens, and of the next token.

`LibraryHead` runs such a head on token rows that were computed elsewhere. A copy of the model runs its own forward,
with a stand-in for the bare transformer that returns the given rows. So poolers, dense layers, activations and caps on
scores are the class's own.

The head of a reranker, classifier or reward model gets all rows of a sequence and uses one of them, or their mean. No
configuration says which, so a few sequences are tried: if one row gives the scores of all rows, all sequences of a
batch are scored at once. Of a generative reranker only the two rows of the vocabulary for yes and no are kept and
computed.

Shapes: T tokens of all sequences, B sequences, S tokens of one, D numbers a row, V entries of a vocabulary, L scores.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from engine.machine.failures import one_line
from engine.model.tasks import AnswerScore, SequenceScores, TokenScores
from engine.rows.with_numpy import last_tokens
from engine.rows.with_torch import on_device, pool
from engine.transformers.forward import Maker
from engine.transformers.reference import Reference, Scores, answer_score, entries_of, some_rows
from engine.types import Batch, ModelError, OutputKind, Rows

_NO_ID = -1  # no token has it


class LibraryHead:
    """Computes in float32 by default, whatever the model's dtype, since most heads are small.

    Safe to call from several threads. Of the original model it keeps only tensors of the head, which are shared if
    they have the dtype already.
    """

    def __init__(
        self, whole: PreTrainedModel, *, entries: Sequence[int] | None = None, dtype: torch.dtype | None = torch.float32
    ) -> None:
        """entries: the vocabulary ids to score; L is then their number. None = all. dtype: None = the model's. Raises
        ModelError if the class has no bare transformer inside, or no output embedding for the entries."""
        if whole.base_model is whole:
            raise ModelError(f"the library's {type(whole).__name__} has no bare transformer in it")
        held = (*whole.parameters(), *whole.buffers())
        replaced: dict[int, Any] = {id(tensor): tensor for tensor in held if dtype in (None, tensor.dtype)}  # shared
        replaced[id(whole.base_model)] = _StandIn(whole.base_model)
        if entries is not None:
            output = whole.get_output_embeddings()  # type: ignore[no-untyped-call]
            if not isinstance(output, nn.Linear):
                raise ModelError(f"the library's {type(whole).__name__} has no output embedding to take rows from")
            replaced[id(output)] = some_rows(output, entries)
        self._model: PreTrainedModel = copy.deepcopy(whole, replaced)
        if dtype is not None:  # shared tensors have the dtype already, so the cast does not copy them
            self._model.to(dtype)  # type: ignore[arg-type]
        self._dtype = dtype or whole.dtype
        config = self._model.config.get_text_config()
        self.pad_id: int | None = config.pad_token_id
        if config.pad_token_id is None:  # without it some classes refuse more than one sequence
            config.pad_token_id = _NO_ID
        self.name = type(whole).__name__

    @torch.inference_mode()
    def __call__(self, rows: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Raw scores [B, L] or [B, S, L] of rows [B, S, D] and their int64 ids [B, S].

        A class that scores sequences needs the ids, because it looks for padding in them.
        """
        scores: Tensor = self._model(input_ids=token_ids, inputs_embeds=rows.to(self._dtype)).logits
        return scores


class _StandIn(nn.Module):
    """Replaces the bare transformer."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.pooler = copy.deepcopy(getattr(base, "pooler", None))
        self.pooler_activation = copy.deepcopy(getattr(base, "pooler_activation", None))

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """inputs_embeds: rows [B, S, D], which become the last hidden states."""
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=inputs_embeds, pooler_output=self._pooled(inputs_embeds)
        )

    def _pooled(self, rows: Tensor) -> Any:
        if self.pooler is None:
            return None
        if self.pooler_activation is None:
            return self.pooler(rows)
        return self.pooler_activation(self.pooler(rows[:, 0]))  # ALBERT's pooler is a single layer


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
    way = _WAYS.get(chosen, _on_all)
    return lambda token_rows, batch: Rows(way(library_head, token_rows, batch).cpu().numpy()), note


def _choose(head: LibraryHead, reference: Reference, expected: Tensor) -> str:
    """A key of _WAYS, or _ALL, which is always right but slower."""
    differences = {
        name: (way(head, reference.token_rows, reference.batch) - expected).abs().max().item()
        for name, way in _WAYS.items()
    }
    nearest = min(differences, key=lambda name: differences[name])
    spread = (expected - expected.mean(dim=0)).abs().max().item()
    return nearest if differences[nearest] <= _SAME * spread else _ALL


def token_scores(whole: PreTrainedModel, head: TokenScores, reference: Reference) -> tuple[Maker, str]:
    """The maker of TOKEN_LOGITS, and a note about it. Raises ModelError.

    The maker does not refer to `whole`, whose layers may be changed afterwards.
    """
    _check_labels(head, reference.scores[OutputKind.TOKEN_LOGITS])
    library_head = LibraryHead(whole)

    def scores_of_tokens(token_rows: Tensor, batch: Batch) -> Rows:
        token_ids = on_device(batch.token_ids, token_rows.device)
        scores = library_head(token_rows[None], token_ids[None])[0]
        return Rows(scores.cpu().numpy(), batch.cu_seqlens)

    return scores_of_tokens, f"scores: the head of {library_head.name} on each token's row"


def _check_labels(head: SequenceScores | TokenScores, expected: Scores) -> None:
    num_scores = expected.values.shape[1]
    if num_scores != len(head.labels):
        raise ModelError(f"config.json names {len(head.labels)} labels, but the head gives {num_scores} scores")


_WAYS: dict[str, _Way] = {
    "the first token's row": lambda head, rows, batch: _on_rows(
        head, rows[on_device(batch.cu_seqlens[:-1], rows.device)]
    ),
    "the last token's row": lambda head, rows, batch: _on_rows(
        head, rows[on_device(last_tokens(batch, head.pad_id), rows.device)]
    ),
    "the mean of the tokens' rows": lambda head, rows, batch: _on_rows(
        head, pool(rows, on_device(batch.cu_seqlens, rows.device), poolings=("mean",))
    ),
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


def next_token_score(whole: PreTrainedModel, head: AnswerScore) -> tuple[Maker, str]:
    """The maker of LOGITS, and a note about it.

    The maker does not refer to `whole`, whose layers may be changed afterwards.
    """
    entries = entries_of(head)
    library_head = LibraryHead(whole, entries=entries)
    asked = " less ".join(map(str, entries))
    note = f"scores: token {asked} as {library_head.name} would go on after the last token"

    def scores_of_answers(token_rows: Tensor, batch: Batch) -> Rows:
        last = on_device(batch.cu_seqlens[1:] - 1, token_rows.device)
        return Rows(answer_score(_on_rows(library_head, token_rows[last])[:, -1]).cpu().numpy())

    return scores_of_answers, note
