"""Chooses the maker of each output kind that a model gives."""

from dataclasses import dataclass
from typing import assert_never

from torch import Tensor
from transformers import PreTrainedModel

from engine.model.model_folder import ModelFolder
from engine.model.tasks import (
    AnswerScore,
    Head,
    SequenceScores,
    TokenScores,
    TokenVectors,
    TokenWeights,
    VocabularyWeights,
)
from engine.rows.with_torch import Pooling, load_modules
from engine.transformers.forward import Maker
from engine.transformers.heads.answer_score import next_token_score
from engine.transformers.heads.label_scores import sequence_scores, token_scores
from engine.transformers.heads.token_vectors import token_vectors
from engine.transformers.heads.token_weights import token_weights
from engine.transformers.heads.vocabulary import vocabulary_weights
from engine.transformers.reference import Reference
from engine.types import Batch, ModelError, OutputKind, Rows


@dataclass(frozen=True, slots=True)
class Made:
    """The makers of a model."""

    makers: dict[OutputKind, Maker]  # for each of the folder's outputs
    notes: tuple[str, ...]  # about the heads, a line each


def makers_of(folder: ModelFolder, whole: PreTrainedModel, reference: Reference) -> Made:
    """A maker for each of folder.outputs. Raises ModelError.

    whole: see `loading.load_model`. Its layers must be as loaded; they may be changed afterwards.
    """
    device = whole.device
    makers: dict[OutputKind, Maker] = {}
    notes: list[str] = []
    if OutputKind.POOLED in folder.outputs:
        makers |= embeddings(Pooling(folder.poolings, load_modules(folder.path, folder.steps, device=device)))
    for head in folder.heads:
        makers[head.output], note = _of_head(folder, whole, head, reference)
        notes.append(note)
    if missing := folder.outputs & ~OutputKind(sum(makers)):
        raise ModelError(f"the transformers engine gives no {missing.name} rows")
    return Made(makers, tuple(filter(None, notes)))


def embeddings(pooling: Pooling) -> dict[OutputKind, Maker]:
    """The makers of an embedding model: a row for each text, and one for each token."""
    return {OutputKind.POOLED: _Pooled(pooling), OutputKind.TOKENS: _token_rows}


def _of_head(folder: ModelFolder, whole: PreTrainedModel, head: Head, reference: Reference) -> tuple[Maker, str]:
    """The maker of the head's output, and a note about it."""
    match head:
        case SequenceScores():
            return sequence_scores(whole, head, reference)
        case AnswerScore():
            return next_token_score(whole, head)
        case TokenScores():
            return token_scores(whole, head, reference)
        case VocabularyWeights():
            return vocabulary_weights(whole, head)
        case TokenVectors():
            note = f"multi-vector: {head.dimensions} numbers for each token"
            return token_vectors(folder, head, whole.device), note
        case TokenWeights():
            return token_weights(folder, head, whole.device), "sparse: a weight for each token"
        case _:
            assert_never(head)


class _Pooled:
    """Makes one row a sequence, before a final Normalize."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling

    def __call__(self, token_rows: Tensor, batch: Batch) -> Rows:
        return Rows(self._pooling(token_rows, batch).cpu().numpy())


def _token_rows(token_rows: Tensor, batch: Batch) -> Rows:
    return Rows(token_rows.cpu().float().numpy(), batch.cu_seqlens)
