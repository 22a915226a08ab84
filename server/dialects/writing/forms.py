"""How rows are written: as JSON numbers, base64 or bytes, of which type, and in what. Knows no dialect's fields."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from server.dialects.writing.dtypes import DType, Ranges, packed, rounded


class Encoding(enum.Enum):
    """How each row is written."""

    FLOAT = "float"  # a list of numbers
    BASE64 = "base64"  # of the row's bytes
    BYTES = "bytes"
    BYTES_ONLY = "bytes_only"  # the same without vLLM's `metadata` header


class Endianness(enum.Enum):
    """The order of a number's bytes; `native` is little too."""

    LITTLE = "little"
    BIG = "big"


class Container(enum.Enum):
    """What the rows are in."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"  # the same fields as in JSON
    RAW = "application/octet-stream"  # rows and nothing else
    NPY = "application/x-npy"  # rows behind numpy's header


# Members are found slowly under their class, and most requests need several.
_FLOAT, _BASE64, _BYTES, _BYTES_ONLY = Encoding
_JSON, _MSGPACK, _RAW, _NPY = Container
BYTES = frozenset((_BYTES, _BYTES_ONLY))
EVERY_CONTAINER = frozenset(Container)
WITH_ROWS_ONLY = frozenset((_JSON, _RAW, _NPY))  # what a route offers that has no msgpack
RAGGED_ONLY = frozenset((_JSON, _RAW))  # what is not one array has no .npy either


@dataclass(frozen=True, slots=True)
class RowForm:
    """What a request asks for."""

    encoding: Encoding = Encoding.FLOAT
    dtype: DType = DType.FLOAT32
    endianness: Endianness = Endianness.LITTLE
    container: Container = Container.JSON
    several: tuple[tuple[str, "RowForm"], ...] = ()  # each row in all of these, by their names; then the rest is unused

    @property
    def has_rows_alone(self) -> bool:
        """Whether the answer's body is nothing but rows."""
        container = self.container
        return container is _RAW or container is _NPY

    @property
    def label(self) -> str:
        """A short word for metrics and logs."""
        return self.encoding.value if self.container is _JSON else _LABELS[self.container]

    def put_into(self, accepted: Container, offers: frozenset[Container]) -> "RowForm":
        """In what the `accept` header prefers, if the route offers it; else in JSON, or alone where that has no place
        for them."""
        if accepted is _JSON or accepted not in offers or self.several:
            return self
        if accepted is _RAW and self is FLOATS:
            return RAW_FLOATS
        encoding = self.encoding if accepted is _MSGPACK or self.encoding is _BYTES else _BYTES_ONLY
        return replace(self, encoding=encoding, container=accepted)


_LABELS = {_RAW: "bytes", _NPY: "npy", _MSGPACK: "msgpack"}
FLOATS = RowForm()  # float32 as lists of numbers in JSON
RAW_FLOATS = RowForm(_BYTES_ONLY, container=_RAW)


def row_bytes(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> NDArray[Any]:
    """The numbers in the form's type and byte order, [rows, any], without gaps. Raises InvalidRequest."""
    values = packed(rows, form.dtype, ranges)
    return values.astype(values.dtype.newbyteorder(">")) if form.endianness is Endianness.BIG else values


def row_values(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> Iterator[bytes]:
    """One JSON value for each row: a list of numbers, a string of base64, or an object of several of these.

    Takes a few rows at a time, see time_slices. Raises InvalidRequest.
    """
    if form.several:
        return _objects(rows, form, ranges)
    if form.encoding is _BASE64:
        return (b'"%b"' % pybase64.b64encode(row.data) for row in row_bytes(rows, form, ranges))
    return (numbers_as_json(row) for row in rounded(rows, form.dtype, ranges))


def _objects(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None) -> Iterator[bytes]:
    names = [b'"%b":' % name.encode() for name, _ in form.several]
    for values in zip(*(row_values(rows, one, ranges) for _, one in form.several), strict=True):
        yield b"{%b}" % b",".join(name + value for name, value in zip(names, values, strict=True))


def numbers_as_json(numbers: NDArray[Any]) -> bytes:
    """A list of numbers, or of lists of them."""
    return orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)
