"""Embeddings by OpenAI's route: raw float32 where the server has it, else base64, else JSON floats.

Our own servers and vLLM answer with raw rows. Others refuse the unknown `encoding_format` with 400 or 422, or ignore
it.
"""

import binascii
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedline.client.answer import HttpAnswer
from embedline.client.failure import printable
from embedline.client.tasks import (
    JSON,
    UNSAID,
    AnswerPart,
    Batch,
    Way,
    as_json,
    check_count,
    index_in,
    most_bytes,
    number_in,
    text_in,
    without_none,
    wrong,
)

_OCTETS = "application/octet-stream"
_MAX_WIDTH = 1 << 20  # numbers of a row
_CHARS_PER_ID = 6  # of a token id in JSON
_PARAMETERS = ("input", "model", "dimensions", "user")
_FORM_FIELDS = ("encoding_format", "embed_dtype", "output_dtype", "embedding_type", "endianness")
_OUR_FORM = ("float", "float32", "little", "native", None)
RowsFor = Callable[[int, int, int], NDArray[np.float32]]  # (start, stop, width) to where these rows are to be written


class RowStore:
    """The rows of all inputs in one array, made when the first answer says how wide they are."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self._rows: NDArray[np.float32] | None = None

    def rows_for(self, start: int, stop: int, width: int) -> NDArray[np.float32]:
        """The place of these rows. Raises Failure for rows of another width than those before."""
        with self._lock:
            if self._rows is None:
                self._rows = _empty(self._num_rows, width)
        if self._rows.shape[1] != width:
            raise wrong(f"rows of {width} numbers where earlier ones have {self._rows.shape[1]}")
        return self._rows[start:stop]

    def finish(self, done: NDArray[np.bool_]) -> NDArray[np.float32]:
        """All rows; those that are not done are NaN."""
        if self._rows is None:
            return np.empty((self._num_rows, 0), np.float32)
        if not done.all():
            self._rows[~done] = np.nan
        return self._rows


def new_array(start: int, stop: int, width: int) -> NDArray[np.float32]:
    """An array for these rows alone."""
    return _empty(stop - start, width)


def _empty(num_rows: int, width: int) -> NDArray[np.float32]:
    """A new array. Raises Failure where memory does not hold it: a server may claim any width."""
    try:
        return np.empty((num_rows, width), np.float32)
    except (MemoryError, ValueError):
        raise wrong(f"rows of {width} numbers, and memory does not hold {num_rows} of them") from None


class EmbedTask:
    """Texts or lists of token ids to rows, float32 [items, dimensions]; NaN where an item failed alone."""

    name = "embed"
    method = "POST"
    ways = tuple(
        Way(path, form, f"{_OCTETS}, {JSON}" if form == "bytes" else JSON)
        for path in ("/v1/embeddings", "/embeddings")
        for form in ("bytes", "base64", "float", UNSAID)
    )

    def __init__(
        self, fields: Mapping[str, Any], rows_for: RowsFor, *, dimensions: int | None, extra: Mapping[str, Any]
    ) -> None:
        """Raises ValueError for a field of `extra` that has a parameter, or asks for other rows than one of float32 for
        each input."""
        for name in extra:
            if name in _PARAMETERS or name in fields:
                raise ValueError(f"extra_body must leave out {name}: give it as the parameter {name}")
        for name in _FORM_FIELDS:
            if extra.get(name) not in _OUR_FORM:
                raise ValueError(f"extra_body must leave out {name}: the client asks for float32, little-endian")
        if extra.get("late_chunking_params") is not None:
            raise ValueError("extra_body must leave out late_chunking_params: the client takes one row for each input")
        self._fields = {**without_none(dimensions=dimensions), **fields, **extra}
        self._rows_for = rows_for
        self.is_whole = bool(extra.get("late_chunking"))
        self._dimensions = dimensions

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        if set(map(type, items)) == {str}:  # most calls: quicker than one by one
            return items
        return [item if isinstance(item, str) else _ids(item, at) for at, item in enumerate(items, start)]

    def length(self, item: Any) -> int:
        return len(item) if isinstance(item, str) else _CHARS_PER_ID * len(item)

    def body(self, items: Sequence[Any], way: Way) -> bytes:
        form = {} if way.form == UNSAID else {"encoding_format": way.form}
        return as_json({"input": items, **self._fields, **form})

    def read(self, batch: Batch, way: Way, answer: HttpAnswer) -> AnswerPart[NDArray[np.float32]]:
        if answer.content_type == _OCTETS:
            return self._read_raw(batch, answer)
        return self._read_json(batch, *answer.results("data", most=most_bytes(batch)))

    def _read_raw(self, batch: Batch, answer: HttpAnswer) -> AnswerPart[NDArray[np.float32]]:
        """Straight from the socket into the array."""
        dtype = answer.header("x-embedline-dtype") or "float32"
        if dtype != "float32":
            raise wrong(f"rows of dtype {printable(dtype[:20])} where float32 was asked for")
        order = answer.header("x-embedline-endianness") or "little"
        if order != "little":
            raise wrong(f"rows of byte order {printable(order[:20])} where little was asked for")
        shape = answer.header("x-embedline-shape")
        if shape is None:
            rows = self._read_shapeless(batch, answer)
        else:
            num_rows, width = _read_shape(shape)
            check_count(num_rows, batch, "rows")
            if answer.length not in (None, 4 * num_rows * width):
                num_bytes = 4 * num_rows * width
                raise wrong(f"a body of {answer.length} bytes where the shape {num_rows},{width} takes {num_bytes}")
            rows = self._target_rows(batch, width)
            answer.read_into(rows.data.cast("B"))
        if np.little_endian is False:  # as raw rows are
            rows.byteswap(inplace=True)
        return AnswerPart(
            result=rows,
            prompt_tokens=_count(answer.header("x-embedline-prompt-tokens")),
            truncated=_count(answer.header("x-embedline-truncated-inputs")),
            form="bytes",
            failed=np.isnan(rows[:, 0]) if _count(answer.header("x-embedline-failed-inputs")) else None,
        )

    def _read_shapeless(self, batch: Batch, answer: HttpAnswer) -> NDArray[np.float32]:
        """Read the answer of a server that does not say the shape: its length does, if that is known."""
        body = answer.read_all(most_bytes(batch))
        if not answer.is_marked_whole:
            raise answer.wrong("nothing says how many rows there were")
        width, rest = divmod(len(body), 4 * len(batch.items))
        if rest or not width:
            raise answer.wrong(f"a body of {len(body)} bytes, which are no {len(batch.items)} rows of float32")
        rows = self._target_rows(batch, width)
        rows[:] = np.frombuffer(body, np.float32).reshape(rows.shape)
        return rows

    def _read_json(self, batch: Batch, content: dict[str, Any], data: list[Any]) -> AnswerPart[NDArray[np.float32]]:
        check_count(len(data), batch, "rows")
        seen: set[int] = set()
        rows: NDArray[np.float32] | None = None
        form = "float"
        for item in data:
            index, value = index_in(item, batch, seen), item.get("embedding")
            if isinstance(value, str):
                form, value = "base64", _from_base64(value)
            elif not isinstance(value, list) or not value:
                raise wrong("an `embedding` that is neither a list nor base64")
            if rows is None:
                rows = self._target_rows(batch, len(value))
            if len(value) != rows.shape[1]:
                raise wrong(f"rows of {len(value)} and of {rows.shape[1]} numbers")
            if isinstance(value, list) and not {int, float}.issuperset(map(type, value)):  # numpy reads "1" and true
                raise wrong("an `embedding` with something else than numbers")
            try:
                with np.errstate(over="ignore"):  # what float32 does not hold becomes infinity, which is refused
                    rows[index] = value
            except (TypeError, ValueError, OverflowError):
                raise wrong("an `embedding` with something else than numbers") from None
            if isinstance(value, list) and not np.isfinite(rows[index]).all():
                raise wrong("an `embedding` with something else than finite numbers")
        assert rows is not None  # no batch is empty
        usage = content.get("usage")
        return AnswerPart(
            result=rows,
            model=text_in(content, "model"),
            prompt_tokens=number_in(usage, "prompt_tokens"),
            truncated=number_in(usage, "truncated_inputs"),
            form=form,
        )

    def _target_rows(self, batch: Batch, width: int) -> NDArray[np.float32]:
        if not 1 <= width <= _MAX_WIDTH:
            raise wrong(f"rows of {width} numbers")
        if self._dimensions not in (None, width):
            raise wrong(f"rows of {width} numbers where dimensions={self._dimensions} was asked for")
        return self._rows_for(batch.start, batch.stop, width)


def _ids(item: Any, index: int) -> list[int]:
    given = item.tolist() if isinstance(item, np.ndarray) else item
    if isinstance(given, list | tuple) and given and all(type(number) is int for number in given):
        return list(given)
    raise TypeError(f"input[{index}] must be a text or a list of token ids, not {type(item).__name__}")


def _read_shape(value: str) -> tuple[int, int]:
    numbers = value.replace(" ", "").split(",")
    if len(numbers) != 2 or not all(one.isascii() and one.isdigit() and len(one) < 12 for one in numbers):
        raise wrong("its shape is not two numbers")
    return int(numbers[0]), int(numbers[1])


def _from_base64(value: str) -> NDArray[np.float32]:
    try:
        data = binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, ValueError):
        raise wrong("an `embedding` that is no base64") from None
    if not data or len(data) % 4:
        raise wrong(f"an `embedding` of {len(data)} bytes, which are no float32")
    return np.frombuffer(data, "<f4")


def _count(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 16 else None
