"""Reads a table of embeddings from a safetensors file, with numpy alone. Knows no sequences.

The file is mapped into memory: it is read as needed, and all processes share it.

Shapes: V tokens of the vocabulary, R rows of the table, T tokens to look up, D numbers a row.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.weights import Header, header_of
from engine.types import ModelError

_TABLE = ("embedding.weight", "embeddings")  # the names of sentence-transformers and model2vec
_ROW_OF_TOKEN, _WEIGHT_OF_TOKEN = "mapping", "weights"  # model2vec's, if tokens share rows
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
}
_BITS_OF_BF16 = np.dtype("<u2")  # no other dtype is stored as this


@dataclass(frozen=True, slots=True)
class Table:
    """A table of embeddings. Several threads may use it at the same time."""

    rows: NDArray[Any]  # [R, D]
    row_of_token: NDArray[np.int64] | None  # [V]; None = each token has its own row
    weight_of_token: NDArray[np.float32] | None  # [V]; None = 1

    @property
    def num_tokens(self) -> int:
        """V."""
        return len(self.rows) if self.row_of_token is None else len(self.row_of_token)

    @property
    def dimensions(self) -> int:
        """D."""
        return int(self.rows.shape[1])

    def __call__(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Rows [T, D] of ids [T], each 0 <= id < V."""
        rows = _float32(self.rows[token_ids if self.row_of_token is None else self.row_of_token[token_ids]])
        return rows if self.weight_of_token is None else rows * self.weight_of_token[token_ids, None]


def read_table(file: Path) -> Table:
    """Raises ModelError if the file holds no table."""
    try:
        header = header_of(file)
        name = next((name for name in _TABLE if name in header.tensors), None)
        if name is None:
            raise ModelError(f"{file} has no table of embeddings ({' or '.join(_TABLE)})")
        rows = _mapped(file, header, name)
        row_of_token = _optional(file, header, _ROW_OF_TOKEN)
        weights = _optional(file, header, _WEIGHT_OF_TOKEN)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ModelError(f"{file} can't be read as a safetensors file") from error
    table = Table(
        rows,
        None if row_of_token is None else row_of_token.astype(np.int64),
        None if weights is None else _float32(weights),
    )
    _check(file, table)
    return table


def _check(file: Path, table: Table) -> None:
    if table.rows.ndim != 2 or not table.rows.size:
        raise ModelError(f"{file}: the table of embeddings has the shape {table.rows.shape}; it needs two dimensions")
    mapping, weights = table.row_of_token, table.weight_of_token
    if mapping is not None and not _are_rows(mapping, len(table.rows)):
        raise ModelError(f"{file}: {_ROW_OF_TOKEN!r} does not name a row of the table for each token")
    if weights is not None and weights.shape != (table.num_tokens,):
        raise ModelError(f"{file}: {_WEIGHT_OF_TOKEN!r} is {weights.shape}, not {(table.num_tokens,)}")


def _are_rows(mapping: NDArray[np.int64], num_rows: int) -> bool:
    return mapping.ndim == 1 and mapping.size > 0 and mapping.min() >= 0 and mapping.max() < num_rows


def _optional(file: Path, header: Header, name: str) -> NDArray[Any] | None:
    return _mapped(file, header, name) if name in header.tensors else None


def _mapped(file: Path, header: Header, name: str) -> NDArray[Any]:
    """Raises ValueError if its size does not match its shape, KeyError for an unknown dtype."""
    tensor = header.tensors[name]
    dtype, shape = np.dtype(_DTYPES[tensor["dtype"]]), tuple(map(int, tensor["shape"]))
    begin, end = tensor["data_offsets"]
    whole = np.memmap(file, np.uint8, mode="r")
    if not 0 <= begin <= end <= len(whole) - header.end:
        raise ValueError("it is cut short")
    return np.asarray(whole[header.end + begin : header.end + end]).view(dtype).reshape(shape)


def _float32(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == _BITS_OF_BF16:  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
