"""text-embeddings-inference's /tokenize and /decode: texts to tokens one by one, and ids to texts."""

import asyncio
from typing import Annotated, Any

import msgspec

from server.dialects.reading.inputs import read_ids, read_prompt, read_texts
from server.dialects.reading.json_body import parse_body
from server.dialects.writing.rows import as_list
from server.http.headers import Wishes
from server.http.route import Answer, Call
from server.requests.models import ModelTable
from server.requests.tokenize import DecodeRequest, TokenizeRequest
from tokenizer_pool.details import Token

_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_IDS = {"type": "array", "items": {"type": "integer"}}
_ID_LISTS = {"anyOf": [_IDS, {"type": "array", "items": _IDS}]}

_JSON = (b"content-type", b"application/json")
_TOKENS_A_SLICE = 1000  # so many are written before the event loop gets its turn: about 1 ms

TOKENS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "text": {"type": "string"},
                "special": {"type": "boolean"},
                "start": {"type": ["integer", "null"]},
                "stop": {"type": ["integer", "null"]},
            },
        },
    },
}
TEXTS_SCHEMA: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


class TokenizeBody(msgspec.Struct):
    """The body of POST /tokenize."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_TEXTS)]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class DecodeBody(msgspec.Struct):
    """The body of POST /decode."""

    ids: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_ID_LISTS)]
    skip_special_tokens: bool = True
    model: str | None = None


_TOKENIZE = msgspec.json.Decoder(TokenizeBody)
_DECODE = msgspec.json.Decoder(DecodeBody)


async def tokenize(call: Call) -> Answer:
    """POST /tokenize."""
    body = await call.body()
    with call.held(body):
        request = decode_tokenize(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body  # what is in it was copied out
        tokens = await call.resources.pipeline.tokens.tokenize(request, call.trace)
    return 200, [_JSON], await encode_tokens(tokens)


async def decode(call: Call) -> Answer:
    """POST /decode."""
    body = await call.body()
    with call.held(body):
        request = decode_decode(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body
        texts = await call.resources.pipeline.tokens.decode(request, call.trace)
    return 200, [_JSON], msgspec.json.encode(texts)


def decode_tokenize(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> TokenizeRequest:
    """Raises RequestError, naming the field or index."""
    fields = parse_body(_TOKENIZE, body)
    model = models.choose(fields.model)
    given = read_texts(fields.inputs, "inputs", max_items=max_items)
    return TokenizeRequest(
        model=model,
        texts=given.texts or (),
        prompt=read_prompt(fields.prompt_name, given, model),
        add_special_tokens=fields.add_special_tokens,
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        is_single=given.is_single,
    )


def decode_decode(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> DecodeRequest:
    """Raises RequestError, naming the field or index."""
    fields = parse_body(_DECODE, body)
    model = models.choose(fields.model)
    given = read_ids(fields.ids, "ids", max_items=max_items)
    return DecodeRequest(
        model=model,
        token_ids=given.token_ids or (),
        skip_special_tokens=fields.skip_special_tokens,
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        is_single=given.is_single,
    )


async def encode_tokens(tokens: list[list[Token]]) -> bytes:
    """The body of the answer to /tokenize. Long work is done in slices, so that other requests get their turn."""
    return as_list([await _encode_text(text) for text in tokens])


async def _encode_text(tokens: list[Token]) -> bytes:
    slices = []
    for first in range(0, len(tokens), _TOKENS_A_SLICE):
        slices.append(msgspec.json.encode([_names(token) for token in tokens[first : first + _TOKENS_A_SLICE]])[1:-1])
        await asyncio.sleep(0)
    return as_list(slices)


def _names(token: Token) -> dict[str, Any]:
    token_id, text, is_special, start, stop, _ = token
    return {"id": token_id, "text": text, "special": is_special, "start": start, "stop": stop}
