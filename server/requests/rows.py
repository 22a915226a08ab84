"""Handles an engine's rows before they are written: whether they are too large, cut, scaled, and made scores.

Rows are bounded by what a frontend can hold and write. Scores come from engines raw, and get the model's activation
here. Long work is done in slices.

Shapes: N rows of L scores, float32.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from engine.types import ROWS_OF_TOKENS, OutputKind, Results, Rows
from server.requests.errors import InvalidRequest
from server.requests.refusals import TOO_LARGE
from server.requests.row_memory import SMALL_BYTES
from server.requests.time_slices import TimeSlice, steps
from server.requests.work import EmbedRequest, Work
from tokenizer_pool.token_ids import TokenizedTexts, offsets_of

MAX_TOKEN_ROW_BYTES = 1 << 28  # of a request's token rows; as JSON they are five times that
MAX_SPARSE_ROW_BYTES = 1 << 28  # of a request's sparse rows; as JSON they are four times that
MAX_COMPARISONS = 1 << 34  # products of two numbers to compare token rows: about a second of a frontend
_EMBEDDED_TOKENS = OutputKind.TOKENS | OutputKind.MULTI_VECTOR
_ANSWER_BYTES = {"float": 12, "msgpack": 9, "base64": 6, "bytes": 4, "npy": 4}  # of a number, at most, about


def check_token_rows(request: Work, tokens: TokenizedTexts) -> None:
    """Raises InvalidRequest, before anything is computed, for more rows than a frontend can write or compare."""
    if not request.outputs & ROWS_OF_TOKENS:
        return
    num_tokens = len(tokens.token_ids)
    dimensions = request.model.token_dimensions or request.model.dimensions
    num_query_tokens = int(tokens.offsets[request.num_queries])
    comparisons = num_query_tokens * (num_tokens - num_query_tokens) * dimensions
    if 4 * num_tokens * dimensions > MAX_TOKEN_ROW_BYTES or comparisons > MAX_COMPARISONS:
        raise InvalidRequest(TOO_LARGE)


def check_sparse_rows(results: Results) -> None:
    """Raises InvalidRequest for more sparse rows than a frontend can write. Their number is known only now."""
    sparse = results.get(OutputKind.SPARSE)
    if sparse is not None and sparse.values.nbytes > MAX_SPARSE_ROW_BYTES:
        raise InvalidRequest(TOO_LARGE)


def bytes_to_hold(request: Work, *, num_tokens: int, encoding: str, is_part: bool = False) -> int:
    """The bytes that embeddings or rows of tokens and the answer with them will take, about; 0 for at most 64 KiB of
    rows, unless they are a part of a request's.

    Scores are few, and nobody knows how many numbers sparse rows will have.
    """
    model, outputs = request.model, request.outputs
    pooled = of_tokens = 0  # numbers
    if outputs is OutputKind.POOLED or outputs & OutputKind.POOLED:  # the first is many times as fast
        pooled = request.num_items * model.dimensions
    if outputs is not OutputKind.POOLED and outputs & _EMBEDDED_TOKENS:
        of_tokens = num_tokens * (model.token_dimensions or model.dimensions)
    row_bytes = 4 * (pooled + of_tokens)
    if row_bytes <= SMALL_BYTES and not is_part:
        return 0
    if isinstance(request, EmbedRequest) and (width := request.width) is not None:
        pooled = request.num_items * min(width, model.dimensions)
    return row_bytes + (pooled + of_tokens) * _ANSWER_BYTES.get(encoding, 0)


def finish(rows: NDArray[np.float32], request: EmbedRequest) -> NDArray[np.float32]:
    """Cut to the request's dimensions or the model's default, then scale to length 1 if the model does. Cutting comes
    first, because a cut row no longer has length 1."""
    width = request.width
    if width is not None and width < rows.shape[1]:
        rows = rows[:, :width]
    by_model = request.model.normalize and request.outputs is OutputKind.POOLED
    if by_model if request.normalize is None else request.normalize:
        norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float32))
        # torch's normalize has the same floor, so a row of zeros stays zero
        rows = rows / np.maximum(norms, np.float32(1e-12))[:, None]
    return rows


async def strongest(results: Results, most: int) -> Results:
    """The results with at most so many entries in each sparse row: those of the largest weights, in the order in which
    they were.

    Of equal weights the first ones stay.
    """
    sparse = results.get(OutputKind.SPARSE)
    if sparse is None:
        return results
    assert sparse.offsets is not None, "sparse rows are ragged"
    kept, time_slice = list[NDArray[np.int64]](), TimeSlice()
    for start, stop in pairwise(sparse.offsets.tolist()):
        order = np.argsort(-np.abs(sparse.values[start:stop, 1]), kind="stable")
        kept.append(start + np.sort(order[:most]))
        await time_slice.end_if_over()
    offsets = offsets_of(np.array([len(places) for places in kept]))
    return {**results, OutputKind.SPARSE: Rows(sparse.values[np.concatenate(kept)], offsets)}


async def bounded(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores [N, L] from 0 to 1: sigmoid of one score, since a softmax of it is always 1, and softmax of several."""
    return await activated(raw, Activation.SIGMOID if raw.shape[1] == 1 else Activation.SOFTMAX)


async def activated(raw: NDArray[np.float32], activation: Activation) -> NDArray[np.float32]:
    """Scores [N, L] of raw ones. Long work is done in slices."""
    if activation is Activation.IDENTITY:
        return raw
    scores = np.empty_like(raw)
    async for part in steps(*raw.shape):
        scores[part] = _sigmoid(raw[part]) if activation is Activation.SIGMOID else _softmax(raw[part])
    return scores


def _softmax(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(raw - raw.max(axis=1, keepdims=True))  # the largest is 1, so none overflows
    shares: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _sigmoid(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(-np.abs(raw))  # at most 1, so none overflows
    scores: NDArray[np.float32] = np.where(raw >= 0, np.float32(1), powers) / (1 + powers)
    return scores
