"""From an engine's rows to those of an answer: cut, and scaled."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.types import OutputKind, Results, Rows
from server.requests.time_slices import TimeSlice
from server.requests.work import EmbedRequest
from tokenizer_pool.token_ids import offsets_of


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
    """With at most so many entries in each sparse row: those of the largest weights, in the order in which they were.

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
