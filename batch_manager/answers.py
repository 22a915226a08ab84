"""Rows out of an engine's answer into the requests that were in its batch. Knows nothing of scheduling."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.types import ROWS_OF_TOKENS, OutputKind, Results, Rows


class MalformedAnswer(Exception):
    """An engine's answer does not fit its batch."""


Shapes = dict[OutputKind, tuple[bool, int]]  # is ragged, D


def check_results(results: Results, outputs: OutputKind, *, seqlens: Sequence[int], shapes: Shapes) -> None:
    """Raise MalformedAnswer unless there are rows of every output kind for sequences of these lengths, in the
    shapes that this model's rows always have; a kind not seen before is put into `shapes`."""
    if set(results) != set(outputs):
        raise MalformedAnswer("its output kinds are not those that were asked for")
    for kind, rows in results.items():
        if not _fits(rows, len(seqlens)) or (kind in ROWS_OF_TOKENS and not _is_row_per_token(rows, seqlens)):
            raise MalformedAnswer(f"its {kind.name} rows do not belong to {len(seqlens)} sequences")
        shape = (rows.offsets is not None, rows.values.shape[1])
        if not shape[1] or shapes.setdefault(kind, shape) != shape:
            raise MalformedAnswer(f"its {kind.name} rows, {shape[1]} numbers each, are not shaped as this model's are")


def _fits(rows: Rows, num_seqs: int) -> bool:
    if rows.offsets is None:
        return len(rows.values) == num_seqs
    offsets = rows.offsets
    if len(offsets) != num_seqs + 1 or offsets[0] != 0 or offsets[-1] != len(rows.values):
        return False
    return bool((offsets[1:] >= offsets[:-1]).all())


def _is_row_per_token(rows: Rows, seqlens: Sequence[int]) -> bool:
    return rows.offsets is not None and np.diff(rows.offsets).tolist() == list(seqlens)


def cut_rows(rows: Rows, start: int, stop: int) -> Rows:
    """The rows of sequences [start, stop); the values are a view."""
    if rows.offsets is None:
        return Rows(rows.values[start:stop])
    first = rows.offsets[start]
    return Rows(rows.values[first : rows.offsets[stop]], rows.offsets[start : stop + 1] - first)


class Assembly:
    """The rows of one request as they come in.

    Rows that come all at once are kept as views. Parts are copied, so that no answer of an engine
    stays in memory for the sake of some of its rows.
    """

    __slots__ = ("_dense", "_num_seqs", "_ragged", "_whole")

    def __init__(self, num_seqs: int) -> None:
        self._num_seqs = num_seqs
        self._whole: Results | None = None
        self._dense: dict[OutputKind, NDArray[np.float32]] = {}
        self._ragged: dict[OutputKind, list[tuple[int, Rows]]] = {}

    def put(self, results: Results, at: int, *, start: int, stop: int) -> None:
        """Sequences [start, stop) of the request are the rows from sequence `at` of the batch on."""
        end = at + stop - start
        parts = {kind: cut_rows(rows, at, end) for kind, rows in results.items()}
        if stop - start == self._num_seqs:
            self._whole = parts
            return
        for kind, part in parts.items():
            if part.offsets is None:
                self._dense_rows(kind, part.values.shape[1])[start:stop] = part.values
            else:
                self._ragged.setdefault(kind, []).append((start, Rows(part.values.copy(), part.offsets)))

    def results(self) -> Results:
        """All rows, in the order of the request's sequences; every part must be in."""
        if self._whole is not None:
            return self._whole
        results = {kind: Rows(values) for kind, values in self._dense.items()}
        for kind, parts in self._ragged.items():
            results[kind] = _join([rows for _, rows in sorted(parts, key=lambda part: part[0])])
        return results

    def _dense_rows(self, kind: OutputKind, width: int) -> NDArray[np.float32]:
        rows = self._dense.get(kind)
        if rows is None:
            rows = self._dense[kind] = np.empty((self._num_seqs, width), np.float32)
        return rows


def _join(parts: list[Rows]) -> Rows:
    """Ragged parts one after another."""
    counts = [np.diff(rows.offsets) for rows in parts if rows.offsets is not None]
    offsets = np.zeros(sum(map(len, counts)) + 1, np.int32)
    np.cumsum(np.concatenate(counts), out=offsets[1:])
    return Rows(np.concatenate([rows.values for rows in parts]), offsets)
