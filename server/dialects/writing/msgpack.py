"""Rows in msgpack, as row_values in forms.py has them in JSON: a list of numbers, base64 or bytes.

Lists of numbers have float32, which takes 5 bytes a number, or integers with 2. All that is of one size each, so that
numpy writes it; msgspec would make a Python float of every number.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pybase64
from numpy.typing import NDArray

from server.dialects.writing.dtypes import Ranges, rounded
from server.dialects.writing.forms import Encoding, RowForm, row_bytes

as_msgpack = msgspec.msgpack.encode
# https://github.com/msgpack/msgpack/blob/master/spec.md: what stands before a number, and before a list.
_BEFORE_A_NUMBER = {"float32": 0xCA, "int8": 0xD0, "uint8": 0xCC}
_LIST_OF_UP_TO_15, _LIST_OF_16_BITS, _LIST_OF_32_BITS = 0x90, 0xDC, 0xDD


def msgpack_values(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> Iterator[bytes]:
    """One value for each row. Takes a few rows at a time, see time_slices. Raises InvalidRequest."""
    if form.encoding is Encoding.FLOAT:
        return _lists(rounded(rows, form.dtype, ranges))
    as_sent = (row.data for row in row_bytes(rows, form, ranges))
    if form.encoding is Encoding.BASE64:
        return (as_msgpack(pybase64.b64encode_as_string(row)) for row in as_sent)
    return (as_msgpack(bytes(row)) for row in as_sent)


def list_head(num_items: int) -> bytes:
    """What stands before so many items."""
    if num_items < 16:
        return bytes((_LIST_OF_UP_TO_15 | num_items,))
    if num_items < 1 << 16:
        return bytes((_LIST_OF_16_BITS,)) + num_items.to_bytes(2, "big")
    return bytes((_LIST_OF_32_BITS,)) + num_items.to_bytes(4, "big")


def _lists(numbers: NDArray[Any]) -> Iterator[bytes]:
    num_rows, width = numbers.shape
    size = numbers.itemsize
    written = np.empty((num_rows, width, 1 + size), np.uint8)
    written[:, :, 0] = _BEFORE_A_NUMBER[numbers.dtype.name]
    big = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder(">"))
    written[:, :, 1:] = big.view(np.uint8).reshape(num_rows, width, size)
    head = list_head(width)
    return (head + row.tobytes() for row in written)
