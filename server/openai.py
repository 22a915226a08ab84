"""OpenAI's dialect of embeddings: a decoder and an encoder, nothing more.

https://platform.openai.com/docs/api-reference/embeddings; `encoding_format: "bytes"` is ours.
"""

import asyncio
import enum
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

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
_PLACE = re.compile(r" - at `\$\.?(.*)`$")  # where msgspec says that a field is wrong
_MISSING = re.compile(r"missing required field `(\w+)`")  # and that one is not there
_MAX_IDS = 1 << 22  # of one request: 2,048 lists of 2,048. OpenAI takes 300,000 tokens
_FIRST_ITEM = re.compile(rb"\[\s*(.)")
_INPUT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}
_Parsed = TypeVar("_Parsed")


class Encoding(enum.Enum):
    """The form of the rows in the answer."""

    FLOAT = "float"
    BASE64 = "base64"  # of little-endian float32, in JSON
    BYTES = "bytes"  # little-endian float32 and nothing else


class EmbeddingsBody(msgspec.Struct):
    """The body of POST /v1/embeddings as it may come; fields that are not named here are ignored."""

    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_INPUT_SCHEMA)]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None


# `input` is looked at before it is decoded: 64 MB of JSON can be 20 million lists, which take seconds and a gigabyte
_BODY = msgspec.json.Decoder(EmbeddingsBody)
_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[int])
_ID_LISTS = msgspec.json.Decoder(list[list[int]])


class _Input(msgspec.Struct, frozen=True):
    """Texts, or lists of token ids."""

    texts: Sequence[str] | None = None
    token_ids: Sequence[Sequence[int]] | None = None
    is_single: bool = False


def decode(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Encoding]:
    """Raises InvalidRequest and ModelNotFound, naming the field or index."""
    fields = _parse(_BODY, body)
    model = models.choose(fields.model)
    given = _read_input(bytes(fields.input), max_items)
    encoding = _read_encoding(fields.encoding_format)
    request = EmbedRequest(
        model=model,
        texts=given.texts,
        token_ids=given.token_ids,
        prompt=model.default_prompt,
        truncation=model.truncation,
        dimensions=_read_dimensions(fields.dimensions, model.dimensions),
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        is_single=given.is_single,
    )
    return request, Encoding.BYTES if wishes.raw_bytes else encoding


def _read_input(raw: bytes, max_items: int) -> _Input:
    """What it is shows in its first characters."""
    if raw.startswith(b'"'):
        return _Input(texts=_check_texts([_parse(_TEXT, raw, "input")], "input"), is_single=True)
    first = _FIRST_ITEM.match(raw)
    if first is None:
        raise InvalidRequest("input must be a text, or a list of texts, token ids or lists of ids", param="input")
    match first[1]:
        case b"]":
            raise InvalidRequest("input must not be empty", param="input")
        case b'"':
            # two quotes a text; a text that ends with a backslash looks as if it had one
            _check_num_items((raw.count(b'"') - raw.count(b'\\"')) // 2, max_items)
            texts = _parse(_TEXTS, raw, "input")
            _check_num_items(len(texts), max_items)
            return _Input(texts=_check_texts(texts, "input[{}]"))
        case b"[":
            _check_num_items(raw.count(b"[") - 1, max_items)
            _check_num_ids(raw)
            return _Input(token_ids=_parse(_ID_LISTS, raw, "input"))
        case _:
            _check_num_ids(raw)
            ids = _parse(_IDS, raw, "input")
            return _Input(token_ids=[ids], is_single=True)


def _check_num_items(num_items: int, max_items: int) -> None:
    if num_items > max_items:
        raise InvalidRequest(f"input has more than the {max_items} items of --max-client-batch-size", param="input")


def _check_num_ids(raw: bytes) -> None:
    if raw.count(b",") >= _MAX_IDS:
        raise InvalidRequest(f"input has more than {_MAX_IDS} token ids", param="input")


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


def _parse(decoder: "msgspec.json.Decoder[_Parsed]", data: bytes, field: str | None = None) -> _Parsed:
    """Raises InvalidRequest. msgspec's messages name types and places, never values."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        message = str(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest(f"{field or 'the body'} is not valid JSON in UTF-8", param=field) from None
    if missing := _MISSING.search(message):
        raise InvalidRequest(f"{missing[1]} is missing", param=missing[1])
    place = _PLACE.search(message)
    param = (field or "") + (place[1] if place else "") or None
    problem = message[: place.start()] if place else message
    raise InvalidRequest(f"{param or 'the body'}: {problem.lower()}", param=param)


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
