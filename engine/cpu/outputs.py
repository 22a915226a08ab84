"""Makes each kind of output, with numpy, from the rows of a compiled model.

If transformers has a class for the head, the head is part of the compiled model. For bge-m3 and ColBERT the compiled
model gives token rows, and their small heads are computed here. Knows no executor.

Shapes: B sequences in a padded mini-batch, S tokens of its longest, N tokens in it, V entries of the vocabulary, D
numbers a row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from engine.cpu.minibatch import MiniBatch
from engine.model.model_folder import ModelFolder
from engine.model.tasks import (
    AnswerScore,
    Normalize,
    PooledScores,
    SequenceScores,
    Step,
    TokenScores,
    TokenVectors,
    TokenWeights,
    TransformersHead,
    VocabularyWeights,
    output_size,
)
from engine.rows.with_numpy import Pooling, largest_of_each_id, load_modules, pooled_in_padded
from engine.types import Batch, ModelError, OutputKind

_Rows = NDArray[np.float32]

TOKEN_ROWS = "token rows"  # the last hidden states

# Takes the compiled model's rows, [B, S, d] or [B, d]. Gives rows [B, D], or of all tokens [N, D]; for SPARSE [n, 2] of
# each sequence, never a view of what it takes. Several threads may call it at the same time.
Maker = Callable[[_Rows, Batch, MiniBatch], _Rows | list[_Rows]]
Makers = Mapping[OutputKind, Maker]


def head_in_graph(folder: ModelFolder) -> TransformersHead | None:
    """The head that is compiled with the model; None = the compiled model gives token rows. Raises ModelError if one
    compiled model can't give all the outputs."""
    in_graph = [head for head in folder.heads if isinstance(head, TransformersHead)]
    if in_graph and (len(folder.heads) > 1 or OutputKind.POOLED in folder.outputs):
        raise ModelError(f"a compiled model gives either {type(in_graph[0]).__name__} or other rows, not both")
    return in_graph[0] if in_graph else None


def makers_of(folder: ModelFolder) -> dict[OutputKind, Maker]:
    """A maker for each of folder.outputs. Raises ModelError if a file is wrong."""
    makers: dict[OutputKind, Maker] = {}
    if OutputKind.POOLED in folder.outputs:
        pooling = Pooling(folder.poolings, load_modules(folder.path, folder.steps))
        makers[OutputKind.POOLED] = PaddedPooling(pooling)
    if OutputKind.TOKENS in folder.outputs:
        makers[OutputKind.TOKENS] = tokens
    for head in folder.heads:
        match head:
            case SequenceScores() | AnswerScore():
                makers[OutputKind.LOGITS] = lambda rows, *_: rows.copy()  # [B, D]
            case PooledScores():
                makers[OutputKind.LOGITS] = PaddedPooling(
                    Pooling(folder.poolings, load_modules(folder.path, folder.steps))
                )
            case TokenScores():
                makers[OutputKind.TOKEN_LOGITS] = tokens
            case VocabularyWeights():
                makers[OutputKind.SPARSE] = not_zero
            case TokenVectors():
                makers[OutputKind.MULTI_VECTOR] = _token_vectors(folder, head)
            case TokenWeights():
                makers[OutputKind.SPARSE] = _token_weights(folder, head)
            case _:
                assert_never(head)
    assert makers.keys() == set(folder.outputs), makers
    return makers


def sizes_of(folder: ModelFolder, width: int) -> dict[OutputKind, int]:
    """Numbers in a row of each output but SPARSE, if the compiled model's rows have `width` numbers. Raises ModelError
    if scores and labels differ in number."""
    scored = [head for head in folder.heads if isinstance(head, SequenceScores | TokenScores)]
    if scored and len(scored[0].labels) != width:
        raise ModelError(f"the model gives {width} scores, and config.json has {len(scored[0].labels)} labels")
    sizes = dict.fromkeys(folder.outputs & ~OutputKind.SPARSE, width)
    if OutputKind.POOLED in sizes:
        sizes[OutputKind.POOLED] = output_size(folder.steps, width * len(folder.poolings))
    for head in folder.heads:
        if isinstance(head, TokenVectors):
            sizes[OutputKind.MULTI_VECTOR] = head.dimensions
        elif isinstance(head, PooledScores):
            sizes[OutputKind.LOGITS] = output_size(folder.steps, width * len(folder.poolings))
    return sizes


def steps_of(folder: ModelFolder) -> tuple[Step, ...]:
    """The steps after the compiled model that have weights in files."""
    found: list[Step] = list(folder.steps) if OutputKind.POOLED in folder.outputs else []
    for head in folder.heads:
        match head:
            case TokenVectors():
                found += head.steps
            case PooledScores():
                found += folder.steps
            case TokenWeights():
                found.append(head.step(folder.hidden_size))
            case SequenceScores() | TokenScores() | AnswerScore() | VocabularyWeights():
                pass  # part of the compiled model
            case _:
                assert_never(head)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PaddedPooling:
    """One row a sequence, before a final Normalize."""

    pooling: Pooling

    def __call__(self, rows: _Rows, batch: Batch, mini_batch: MiniBatch) -> _Rows:
        """[B, D]"""
        is_pooled = pooled_in_padded(batch, mini_batch.index, mini_batch.is_token)
        return self.pooling(rows, mini_batch.seqlens, is_pooled)


def tokens(rows: _Rows, _: Batch, mini_batch: MiniBatch) -> _Rows:
    """[N, D]"""
    return rows[mini_batch.is_token]


def not_zero(rows: _Rows, _: Batch, __: MiniBatch) -> list[_Rows]:
    """[n, 2] of each row [V]; an id below 2**24 is exact in float32."""
    return [np.stack([(found := np.flatnonzero(row)).astype(np.float32), row[found]], axis=1) for row in rows]


def _token_vectors(folder: ModelFolder, head: TokenVectors) -> Maker:
    modules = load_modules(folder.path, (*head.steps, Normalize()) if head.normalize else head.steps)
    return lambda rows, _, mini_batch: modules(rows[mini_batch.is_token])


def _token_weights(folder: ModelFolder, head: TokenWeights) -> Maker:
    """The largest weight of each token id, ids in rising order."""
    modules = load_modules(folder.path, (head.step(folder.hidden_size),))
    unused_ids = np.array(head.unused_ids, np.int32)

    def entries_of(rows: _Rows, batch: Batch, mini_batch: MiniBatch) -> list[_Rows]:
        weights = modules(rows[mini_batch.is_token])[:, 0]
        ids = batch.token_ids[mini_batch.index[mini_batch.is_token]]
        entries, bounds = largest_of_each_id(weights, ids, mini_batch.seqlens, unused_ids=unused_ids)
        return np.split(entries, bounds[1:-1])

    return entries_of
