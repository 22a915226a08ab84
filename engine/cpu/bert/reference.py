"""A BERT's token rows of one sequence, with numpy and no executor: what a compiled model's rows are compared with.

Written from the papers (Devlin et al. 2018, arXiv 1810.04805; Vaswani et al. 2017, arXiv 1706.03762), as transformers
computes them: tests hold it against transformers.

Shapes: S tokens, H numbers a row, N heads of D numbers.
"""

import numpy as np
from numpy.typing import NDArray

from engine.cpu.bert.weights import Bert
from engine.rows.modules_numpy import gelu

_Rows = NDArray[np.float32]


def token_rows(model: Bert, token_ids: NDArray[np.int32]) -> _Rows:
    """float32 [S, H], from int32 [S] ids."""
    weights = model.weights
    summed = weights["embeddings.word_embeddings.weight"][token_ids]
    summed = summed + weights["embeddings.token_type_embeddings.weight"][0]
    summed = summed + weights["embeddings.position_embeddings.weight"][_positions(model, token_ids)]
    hidden = _norm(model, summed, "embeddings.LayerNorm")
    for number in range(model.num_layers):
        hidden = _layer(model, hidden, f"encoder.layer.{number}")
    return hidden


def _positions(model: Bert, token_ids: NDArray[np.int32]) -> NDArray[np.int64]:
    if model.padding_idx is None:
        return np.arange(len(token_ids))
    is_token = token_ids != model.padding_idx
    return np.where(is_token, np.cumsum(is_token), 0) + model.padding_idx


def _layer(model: Bert, hidden: _Rows, name: str) -> _Rows:
    attended = _linear(model, _attention(model, hidden, f"{name}.attention.self"), f"{name}.attention.output.dense")
    hidden = _norm(model, hidden + attended, f"{name}.attention.output.LayerNorm")
    inner = gelu(_linear(model, hidden, f"{name}.intermediate.dense"), computes_in=np.float32)
    return _norm(model, hidden + _linear(model, inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")


def _attention(model: Bert, hidden: _Rows, name: str) -> _Rows:
    query, key, value = (
        _linear(model, hidden, f"{name}.{part}").reshape(len(hidden), model.num_heads, -1).swapaxes(0, 1)
        for part in ("query", "key", "value")
    )  # [N, S, D]
    scores = query @ key.swapaxes(1, 2) / np.sqrt(np.float32(query.shape[-1]))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    found: _Rows = (weights @ value).swapaxes(0, 1).reshape(hidden.shape)
    return found


def _linear(model: Bert, rows: _Rows, name: str) -> _Rows:
    found: _Rows = rows @ model.weights[f"{name}.weight"].T + model.weights[f"{name}.bias"]
    return found


def _norm(model: Bert, rows: _Rows, name: str) -> _Rows:
    centred = rows - rows.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    normed: _Rows = centred / np.sqrt(variance + np.float32(model.norm_eps))
    return normed * model.weights[f"{name}.weight"] + model.weights[f"{name}.bias"]
