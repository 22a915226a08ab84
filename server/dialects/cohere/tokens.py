"""Cohere's POST /v1/tokenize and /v1/detokenize: one text to tokens, and tokens to a text, without special tokens.

https://docs.cohere.com/reference/tokenize
"""

from typing import Annotated

import msgspec

from server.dialects.cohere.embed import ApiVersion
from server.dialects.reading.inputs import read_ids, read_texts
from server.dialects.reading.known_fields import BodyReader
from server.dialects.route import Answer, Call, Route
from server.dialects.writing.openai_shapes import openai_error
from server.dialects.writing.rows import as_list
from server.requests.errors import InvalidRequest
from server.requests.pipeline import Pipeline
from server.requests.time_slices import steps
from server.requests.work import DecodeRequest, TokenizeRequest
from tokenizer_pool.details import Token

_JSON = (b"content-type", b"application/json")
_META = b'{"api_version":{"version":"1"}}'
_NUMBERS_A_TOKEN = 16  # what writing a token costs, counted in plain numbers


class CohereTokenizeBody(msgspec.Struct):
    """The body of POST /v1/tokenize."""

    text: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "string"})]
    model: str | None = None


class CohereDetokenizeBody(msgspec.Struct):
    """The body of POST /v1/detokenize."""

    tokens: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "array", "items": {"type": "integer"}})]
    model: str | None = None


_TOKENIZE = BodyReader(CohereTokenizeBody)
_DETOKENIZE = BodyReader(CohereDetokenizeBody)


def decode_tokenize(call: Call, body: bytes) -> TokenizeRequest:
    """POST /v1/tokenize. Raises RequestError, naming the field."""
    fields = _TOKENIZE.read(body)
    model = call.models.choose(fields.model)
    given = read_texts(fields.text, "text", max_items=1)
    if not given.is_single:
        raise InvalidRequest("text must be a text", param="text")
    return TokenizeRequest(
        model=model,
        texts=given.texts or (),
        add_special_tokens=False,
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        field="text",
        is_single=True,
    )


def decode_detokenize(call: Call, body: bytes) -> DecodeRequest:
    """POST /v1/detokenize. Raises RequestError, naming the field."""
    fields = _DETOKENIZE.read(body)
    model = call.models.choose(fields.model)
    given = read_ids(fields.tokens, "tokens", max_items=1)
    if not given.is_single:
        raise InvalidRequest("tokens must be a list of token ids", param="tokens")
    return DecodeRequest(
        model=model,
        token_ids=given.token_ids or (),
        skip_special_tokens=False,
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        field="tokens",
        is_single=True,
    )


async def encode_tokens(call: Call, request: TokenizeRequest, tokens: list[list[Token]]) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    (own,) = tokens
    ids, texts = [], []
    async for part in steps(len(own), _NUMBERS_A_TOKEN):
        ids.append(msgspec.json.encode([token.token_id for token in own[part]])[1:-1])
        texts.append(msgspec.json.encode([token.text for token in own[part]])[1:-1])
    return Answer(200, [_JSON], b'{"tokens":%b,"token_strings":%b,"meta":%b}' % (as_list(ids), as_list(texts), _META))


async def encode_text(call: Call, request: DecodeRequest, texts: list[str]) -> Answer:
    """POST /v1/detokenize."""
    return Answer(200, [_JSON], b'{"text":%b,"meta":%b}' % (msgspec.json.encode(texts[0]), _META))


class _Meta(msgspec.Struct):
    api_version: ApiVersion


class TokensAnswer(msgspec.Struct):
    """The answer of POST /v1/tokenize."""

    tokens: list[int]
    token_strings: list[str]
    meta: _Meta


class TextAnswer(msgspec.Struct):
    """The answer of POST /v1/detokenize."""

    text: str
    meta: _Meta


ROUTES = (
    Route(
        path="/v1/tokenize",
        decode=decode_tokenize,
        run=Pipeline.tokenize,
        encode=encode_tokens,
        error_shape=openai_error,
        summary="Show the tokens of a text with Cohere's API",
        body=CohereTokenizeBody,
        example={"text": "The ferry leaves at seven."},
        answers=(TokensAnswer,),
    ),
    Route(
        path="/v1/detokenize",
        decode=decode_detokenize,
        run=Pipeline.decode,
        encode=encode_text,
        error_shape=openai_error,
        summary="Make a text of token ids with Cohere's API",
        body=CohereDetokenizeBody,
        example={"tokens": [7592, 2088]},
        answers=(TextAnswer,),
    ),
)
