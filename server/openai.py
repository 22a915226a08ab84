"""OpenAI's dialect of embeddings: a decoder and an encoder, nothing more.

https://platform.openai.com/docs/api-reference/embeddings; `encoding_format: "bytes"` is ours.
"""

import asyncio
import enum
import re
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from server.errors import InvalidRequest
from server.models import ModelTable
from server.pipeline import Embedded, EmbedRequest
from server.request_headers import Wishes

EMBEDDINGS_PATHS = ("/v1/embeddings", "/embeddings")

_ROWS_A_SLICE = 16  # floats of so many rows are written before the event loop gets its turn: about 1 ms
_PATH = re.compile(r" - at `\$\.?(.*)`$")  # where msgspec says that a field is wrong
_MISSING = re.compile(r"missing required field `(\w+)`")  # and that one is not there


class Encoding(enum.Enum):
    """The form of the rows in the answer."""

    FLOAT = "float"
    BASE64 = "base64"  # of little-endian float32, in JSON
    BYTES = "bytes"  # little-endian float32 and nothing else


class EmbeddingsBody(msgspec.Struct):
    """The body of POST /v1/embeddings as it may come; fields that are not named here are ignored."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None


_DECODER = msgspec.json.Decoder(EmbeddingsBody)


def decode(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Encoding]:
    """Raises InvalidRequest and ModelNotFound, naming the field or index."""
    try:
        fields = _DECODER.decode(body)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(error) from None
    model = models.choose(fields.model)
    texts, token_ids = _read_input(fields.input, max_items)
    encoding = _read_encoding(fields.encoding_format)
    request = EmbedRequest(
        model=model,
        texts=texts,
        token_ids=token_ids,
        prompt=model.default_prompt,
        truncation=model.truncation,
        dimensions=_read_dimensions(fields.dimensions, model.dimensions),
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        is_single=isinstance(fields.input, str) or isinstance(fields.input[0], int),
    )
    return request, Encoding.BYTES if wishes.raw_bytes else encoding


def _read_input(
    value: str | list[str | int | list[int]], max_items: int
) -> tuple[Sequence[str] | None, Sequence[Sequence[int]] | None]:
    """Texts, or lists of token ids."""
    if isinstance(value, str):
        return _check_texts([value], "input"), None
    if not value:
        raise InvalidRequest("input must not be empty", param="input")
    kind = type(value[0])
    if kind is int:
        _check_kinds(value, int)
        return None, [value]  # type: ignore[list-item]  # all are int, as just checked
    if len(value) > max_items:
        raise InvalidRequest(
            f"input has {len(value)} items, more than the {max_items} of --max-client-batch-size", param="input"
        )
    _check_kinds(value, kind)
    if kind is str:
        return _check_texts(value, "input[{}]"), None  # type: ignore[arg-type]
    return None, value  # type: ignore[return-value]


def _check_kinds(items: Sequence[object], kind: type) -> None:
    if set(map(type, items)) != {kind}:
        index = next(index for index, item in enumerate(items) if type(item) is not kind)
        raise InvalidRequest(
            f"input[{index}] is of another type than input[0]: an input is texts, token ids or lists of token ids",
            param=f"input[{index}]",
        )


def _check_texts(texts: list[str], name: str) -> list[str]:
    if not all(texts):
        param = name.format(texts.index(""))
        raise InvalidRequest(f"{param} must not be an empty string", param=param)
    return texts


def _read_dimensions(wished: int | None, own: int) -> int | None:
    if wished is not None and not 1 <= wished <= own:
        raise InvalidRequest(f"dimensions must be from 1 to {own} for this model", param="dimensions")
    return wished


def _read_encoding(wished: str | None) -> Encoding:
    if wished is None:
        return Encoding.FLOAT
    try:
        return Encoding(wished)
    except ValueError:
        raise InvalidRequest("encoding_format must be float, base64 or bytes", param="encoding_format") from None


def _malformed(error: Exception) -> InvalidRequest:
    """msgspec's messages name types and places, never values."""
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequest("the body is not valid JSON in UTF-8")
    message = str(error)
    if missing := _MISSING.search(message):
        return InvalidRequest(f"{missing[1]} is missing", param=missing[1])
    place = _PATH.search(message)
    problem = message[: place.start()] if place else message
    param = (place[1] or None) if place else None
    return InvalidRequest(f"{param or 'the body'}: {problem.lower()}", param=param)


def headers(embedded: Embedded, encoding: Encoding) -> list[tuple[bytes, bytes]]:
    """The answer's headers, less its length; those of raw bytes are of one size however many rows there are."""
    if encoding is not Encoding.BYTES:
        return [(b"content-type", b"application/json")]
    num_rows, width = embedded.rows.shape
    return [
        (b"content-type", b"application/octet-stream"),
        (b"x-embedline-shape", b"%d,%d" % (num_rows, width)),
        (b"x-embedline-dtype", b"float32"),
        (b"x-embedline-prompt-tokens", b"%d" % embedded.num_tokens),
    ]


async def encode(embedded: Embedded, encoding: Encoding, model: str) -> bytes | memoryview:
    """The body of the answer. Long work is done in slices, so that other requests get their turn."""
    if encoding is Encoding.BYTES:
        return np.ascontiguousarray(embedded.rows, "<f4").reshape(-1).data.cast("B")
    parts = [b'{"object":"list","data":[']
    for first in range(0, len(embedded.rows), _ROWS_A_SLICE):
        if first:
            await asyncio.sleep(0)
        parts += _items(embedded.rows[first : first + _ROWS_A_SLICE], encoding, first)
    parts.append(
        b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
        % (orjson.dumps(model), embedded.num_tokens, embedded.num_tokens)
    )
    return b"".join(parts)


def _items(rows: NDArray[np.float32], encoding: Encoding, first: int) -> Iterator[bytes]:
    rows = np.ascontiguousarray(rows, "<f4")
    for index, row in enumerate(rows, first):
        comma = b"," if index else b""
        if encoding is Encoding.BASE64:
            yield b'%b{"object":"embedding","index":%d,"embedding":"%b"}' % (comma, index, pybase64.b64encode(row.data))
        else:
            numbers = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
            yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (comma, index, numbers)
