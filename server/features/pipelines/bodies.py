"""A pipeline's input out of a body and its output as one, by the types of its function.

In JSON arrays are lists of numbers. In msgpack they are their bytes, in the form of the package msgpack-numpy. Msgpack
that is made of too many values or lists is found before a decoder holds the event loop for it: a byte may be an empty
list, and a body of 64 MB would be 4 GB of them, and ten seconds without a heartbeat.
"""

import itertools
import math
import re
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedline.pipelines import Pipeline
from embedline.pipelines.graph import in_words
from server.dialects.reading.json_body import (
    LARGE_BYTES,
    MAX_LISTS,
    MAX_WHOLE,
    WORDS,
    LosslessDecoder,
    parse,
    parse_body,
)
from server.features.pipelines.loading import PipelinesUnusable
from server.features.pipelines.messages import Listed
from server.requests.errors import EngineFailed, MalformedBody, RequestError
from server.requests.limits import NUMBERS_A_STEP, TimeSlice

MAX_ANSWER_BYTES = 256 << 20
_TOO_LARGE = f"the answer has more than {MAX_ANSWER_BYTES} bytes"
_FLOAT_BYTES, _NUMBER_BYTES = 4, 2  # at least, in JSON: `0.0,` and `0,`
_MAX_JSON_VALUES = 16_000_000  # with more than these, or MAX_VALUES keys, the process is busy for seconds
_KINDS = "biuf"  # of dtypes
_KEY_END = re.compile(rb'"[ \t\n\r]*:')
_DTYPE = re.compile("[<>|=]?(b1|[iu][1248]|f[248])")

MAX_VALUES = 2_000_000  # besides what is in arrays, each of which is one
_VALUES_A_STEP = 1 << 12
_IS_LIST = bytes(first in range(0x80, 0xA0) or first in range(0xDC, 0xE0) for first in range(256))  # or a map
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bin, ext, str
_SIZES = [1] * 0xA0 + [1 + size for size in range(32)] + [1] * 0x40  # by the first byte, of what has a size of its own
_SIZES[0xCA:0xD4] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]  # float, uint, int
_SIZES[0xD4:0xD9] = [3, 4, 6, 10, 18]  # fixext
_SIZES[0xDC:0xE0] = [3, 5, 3, 5]  # without what is in it, which follows
for _first, _num_bytes in _LENGTH_BYTES.items():
    _SIZES[_first] = 1 + _num_bytes + (_first in (0xC7, 0xC8, 0xC9))  # ext has a type too


class Bodies:
    """The bodies of one pipeline."""

    def __init__(self, pipeline: Pipeline[..., Any]) -> None:
        """Raises PipelinesUnusable for a type that JSON has no form for."""
        fields = [
            (name, kind, pipeline.defaults[name]) if name in pipeline.defaults else (name, kind)
            for name, kind in pipeline.parameters.items()
        ]
        self._names = tuple(pipeline.parameters)
        try:
            self._input = msgspec.defstruct(pipeline.name, fields, kw_only=True, forbid_unknown_fields=True)
            self._from_json = LosslessDecoder[Any](self._input, dec_hook=_numbers)
            self._from_msgpack = msgspec.msgpack.Decoder(self._input, dec_hook=_numbers)
            self.listed = Listed(
                name=pipeline.name,
                description=pipeline.description,
                steps=[node.name for node in pipeline.graph.nodes],
                timeout=pipeline.graph.timeout,
                input=msgspec.json.schema(self._input, schema_hook=_schema),
                output=msgspec.json.schema(pipeline.returns, schema_hook=_schema),
            )
        except (TypeError, RuntimeError) as error:  # RuntimeError for some names of parameters, as those with __
            raise PipelinesUnusable(f"pipeline {pipeline.name}: {' '.join(str(error).split())}") from None

    def read(self, body: bytes, *, is_msgpack: bool) -> dict[str, Any]:
        """Reads all inputs by name. Raises MalformedBody, InvalidRequest, which names the field, and EngineFailed."""
        if not is_msgpack and (_has_many_keys(body) or body.count(b",") > _MAX_JSON_VALUES):
            raise MalformedBody(f"the body has more than {MAX_VALUES} keys or {_MAX_JSON_VALUES} values")
        try:
            found = parse(self._from_msgpack, body, form="msgpack") if is_msgpack else parse_body(self._from_json, body)
        except RequestError:
            raise
        except Exception as error:  # of a type's own __post_init__; its message may repeat a text
            raise EngineFailed(f"pipeline {self.listed.name}: its input failed: {type(error).__name__}") from None
        return {name: getattr(found, name) for name in self._names}

    async def write(self, output: Any, *, is_msgpack: bool) -> list[bytes]:
        """The body in parts. Raises ValueError and TypeError for what is not of the pipeline's type and has no form in
        JSON."""
        parts = [msgspec.msgpack.encode(output, enc_hook=_packed)] if is_msgpack else await _json(output)
        if sum(map(len, parts)) > MAX_ANSWER_BYTES:
            raise ValueError(_TOO_LARGE)
        return parts


def _has_many_keys(body: bytes) -> bool:
    return body.count(b":") > MAX_VALUES and sum(1 for _ in _KEY_END.finditer(body)) > MAX_VALUES


async def _json(output: Any) -> list[bytes]:
    """Large arrays are written in slices of time: whole they would be Python objects, and hold all other runs."""
    arrays, mark = list[NDArray[Any]](), secrets.token_hex(16).encode()  # no output has it

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray) and _num_values(value) > NUMBERS_A_STEP:
            is_float = value.size and value.dtype.kind == "f"
            if _num_values(value) * (_FLOAT_BYTES if is_float else _NUMBER_BYTES) > MAX_ANSWER_BYTES:
                raise ValueError(_TOO_LARGE)  # at once
            arrays.append(value)
            return msgspec.Raw(mark)
        return _plain(value)

    first, *others = msgspec.json.encode(output, enc_hook=plain).split(mark)
    parts, num_bytes, time_slice = [first], 0, TimeSlice()
    for array, after in zip(arrays, others, strict=True):
        for piece in _pieces(array):
            num_bytes += len(piece)
            if num_bytes > MAX_ANSWER_BYTES:
                raise ValueError(_TOO_LARGE)
            parts.append(piece)
            await time_slice.end_if_over()
        parts.append(after)
    return parts


def _pieces(array: NDArray[Any]) -> Iterator[bytes]:
    """An array in JSON, about NUMBERS_A_STEP values at a time."""
    if array.ndim == 0 or _num_values(array) <= NUMBERS_A_STEP:
        yield msgspec.json.encode(_plain(array))
        return
    num_rows, before = max(1, NUMBERS_A_STEP * len(array) // _num_values(array)), b"["
    for start in range(0, len(array), num_rows):
        yield before
        before = b","
        if num_rows == 1:
            yield from _pieces(array[start])
        else:
            yield msgspec.json.encode(_plain(array[start : start + num_rows]))[1:-1]
    yield b"]"


def _num_values(array: NDArray[Any]) -> int:
    """Numbers, and empty lists: there may be a billion of these in an array that has no bytes."""
    return math.prod(itertools.takewhile(bool, array.shape))


def _numbers(kind: Any, value: Any) -> Any:
    """An array, or a number of numpy's. Raises ValueError; the message repeats nothing."""
    if isinstance(value, dict):
        array = _unpacked(*(value.get(name.encode(), value.get(name)) for name in ("type", "shape", "data")))
    else:
        try:
            is_word = isinstance(value, str) and kind is np.bool_
            array = np.asarray(WORDS.get(value, value) if is_word else value)
            if array.dtype.kind not in _KINDS:
                raise ValueError
        except (ValueError, TypeError, OverflowError):
            raise ValueError("Expected numbers in lists of equal lengths") from None
    if isinstance(kind, type) and issubclass(kind, np.generic):
        if array.ndim:
            raise ValueError("Expected a number")
        return _converted(array, kind)[()]
    dtypes = [one for one in getattr(kind, "__args__", ()) if getattr(one, "__origin__", None) is np.dtype]
    return _converted(array, dtypes[0].__args__[0]) if dtypes and isinstance(dtypes[0].__args__[0], type) else array


def _converted(array: NDArray[Any], wanted: type[np.generic]) -> NDArray[Any]:
    """Rounded where floats are wanted. Raises ValueError where other numbers would come of it."""
    if issubclass(array.dtype.type, wanted):
        return array
    dtype = np.dtype(wanted)
    if dtype.kind not in _KINDS:
        raise ValueError(f"Expected {wanted.__name__}, which has no form here")
    with np.errstate(all="ignore"):  # it is looked at below
        found = array.astype(dtype)
    is_same = np.isfinite(found) == np.isfinite(array) if dtype.kind == "f" else found == array
    if array.dtype.kind == "f" and dtype.kind != "f":
        is_same &= np.abs(array) < MAX_WHOLE
    if not is_same.all():
        raise ValueError(f"Expected numbers that fit {wanted.__name__}")
    return found


def _unpacked(dtype: Any, shape: Any, data: Any) -> NDArray[Any]:
    """The array of msgpack-numpy's fields. Raises ValueError."""
    is_described = isinstance(dtype, str) and _DTYPE.fullmatch(dtype) and isinstance(shape, list)
    if not is_described or not isinstance(data, bytes) or any(type(one) is not int or one < 0 for one in shape):
        raise ValueError("Expected an array: type, as <f4, shape and data in msgpack, or lists of numbers")
    try:
        array = np.frombuffer(data, dtype).reshape(shape)
        if _num_values(array) > max(array.size, MAX_LISTS):
            raise ValueError
        return array.astype(array.dtype.newbyteorder("="))  # a copy, so that steps may write to it
    except (ValueError, TypeError):
        raise ValueError("Expected as many bytes of data as type and shape say") from None


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        described = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
        return {**described, b"data": value.tobytes()}
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{in_words(type(value))} has no form in JSON")


def _schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type of numpy's. Raises TypeError."""
    if isinstance(kind, type) and issubclass(kind, np.ndarray):
        return {"type": "array", "items": {}, "description": "numbers, or lists of equal lengths"}
    if isinstance(kind, type) and issubclass(kind, np.number | np.bool_):
        return {"type": "number"}
    raise TypeError(f"{in_words(kind)} has no form in JSON")


async def check_msgpack(body: bytes) -> None:
    """Refuse too many values and lists with MalformedBody, and let other runs go on meanwhile. The body may be no
    msgpack."""
    if len(body) <= LARGE_BYTES:
        return
    time_slice, at, num_values, num_lists = TimeSlice(), 0, 0, 0
    while at < len(body):
        at, more = _pass(body, at)
        num_values, num_lists = num_values + _VALUES_A_STEP, num_lists + more
        if num_lists > MAX_LISTS:
            raise MalformedBody(f"the body has more than {MAX_LISTS} lists and maps")
        if num_values > MAX_VALUES:
            raise MalformedBody(f"the body has more than {MAX_VALUES} values; send arrays as their bytes")
        await time_slice.end_if_over()


def _pass(body: bytes, at: int) -> tuple[int, int]:
    """The place where the next values begin, and how many lists and maps were among those that were passed."""
    num_lists = 0
    for _ in range(_VALUES_A_STEP):
        if at >= len(body):
            break
        first = body[at]
        num_lists += _IS_LIST[first]
        if num_bytes := _LENGTH_BYTES.get(first):
            at += int.from_bytes(body[at + 1 : at + 1 + num_bytes], "big")
        at += _SIZES[first]
    return at, num_lists
