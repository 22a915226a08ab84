"""Makes the outputs from token rows: chooses the maker of each, and has those of pooled rows and token vectors.

ColBERT's vectors, one for each token, are for late interaction; which tokens count there is decided elsewhere. Scores
by the library's heads are in library_heads.py, sparse weights in sparse.py.

Shapes: T tokens of a batch, D numbers a row.
"""

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.model.model_folder import ModelFolder
from engine.model.tasks import (
    AnswerScore,
    Head,
    PooledScores,
    SequenceScores,
    TokenScores,
    TokenVectors,
    TokenWeights,
    VocabularyWeights,
)
from engine.rows.heads import load_vectors
from engine.rows.with_torch import Pooling, load_modules
from engine.transformers.forward import Maker
from engine.transformers.library_heads import next_token_score, sequence_scores, token_scores
from engine.transformers.reference import Reference
from engine.transformers.sparse import token_weights, vocabulary_weights
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
    """The makers of an embedding model: a row for each text, before a final Normalize, and one for each token."""

    def of_tokens(token_rows: Tensor, batch: Batch) -> Rows:
        return Rows(token_rows.cpu().float().numpy(), batch.cu_seqlens)

    return {OutputKind.POOLED: _pooled(pooling), OutputKind.TOKENS: of_tokens}


def _pooled(pooling: Pooling) -> Maker:
    """Gives a row for each text."""
    return lambda token_rows, batch: Rows(pooling(token_rows, batch).cpu().numpy())


def _of_head(folder: ModelFolder, whole: PreTrainedModel, head: Head, reference: Reference) -> tuple[Maker, str]:
    match head:
        case SequenceScores():
            return sequence_scores(whole, head, reference)
        case AnswerScore():
            return next_token_score(whole, head)
        case PooledScores():
            note = f"scores: the modules after the pooling ({folder.pooling})"
            return _pooled(Pooling(folder.poolings, load_modules(folder.path, folder.steps, device=whole.device))), note
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


def token_vectors(folder: ModelFolder, head: TokenVectors, device: torch.device) -> Maker:
    """Gives ragged rows [T, head.dimensions], one for each token in the order of the batch. Raises ModelError if a file
    of the steps is wrong."""
    vectors = load_vectors(folder.path, head, hidden_size=folder.hidden_size, device=device)

    @torch.inference_mode()
    def of_tokens(token_rows: Tensor, batch: Batch) -> Rows:
        return Rows(vectors(token_rows).cpu().numpy(), batch.cu_seqlens)

    return of_tokens
