"""text-embeddings-inference's /tokenize and /decode: texts to tokens, and token ids to texts."""

from typing import Annotated

import msgspec

from server.dialects.reading.inputs import ID_LISTS, TEXTS, read_ids, read_texts
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.reading.text_options import PromptFields, read_prompt
from server.dialects.route import Answer, Call, Route, json_answer
from server.dialects.row_answers import as_list
from server.dialects.tei.shared import tei_error
from server.requests.errors import EmptyInput
from server.requests.pipeline import Pipeline
from server.requests.time_slices import TimeSlice, steps
from server.requests.work import DecodeRequest, TokenizeRequest
from tokenizer_pool.tasks import Token

_NUMBERS_A_TOKEN = 16  # what writing a token costs, counted in plain numbers


class TokenizeBody(msgspec.Struct):
    """The body of POST /tokenize."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=TEXTS)]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class DecodeBody(msgspec.Struct):
    """The body of POST /decode."""

    ids: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=ID_LISTS)]
    skip_special_tokens: bool = True
    model: str | None = None


class TokenInText(msgspec.Struct):
    """One token; `start` and `stop` are characters of the text, null for a token that is not in it."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


_TOKENIZE = FieldsReader(TokenizeBody)
_DECODE = FieldsReader(DecodeBody)


def decode_tokenize(call: Call, body: bytes) -> TokenizeRequest:
    """POST /tokenize. Raises RequestError, naming the field or index."""
    fields = _TOKENIZE.read(body)
    model = call.models.choose(fields.model, with_prompt=True)
    given = read_texts(fields.inputs, "inputs", max_items=call.max_items)
    name = call.models.asked_name(fields.model)
    return TokenizeRequest(
        **call.common(model),
        texts=given.texts or (),
        prompt=read_prompt(PromptFields(prompt_name=fields.prompt_name), model, name=name),
        add_special_tokens=fields.add_special_tokens,
        is_single=given.is_single,
    )


def decode_decode(call: Call, body: bytes) -> DecodeRequest:
    """POST /decode. Raises RequestError, naming the field or index."""
    fields = _DECODE.read(body)
    model = call.models.choose(fields.model)
    given = read_ids(fields.ids, "ids", max_items=call.max_items)
    token_ids = given.token_ids or ()
    for index, ids in enumerate(token_ids):
        if not ids:
            raise EmptyInput(f"ids[{index}] must not be empty", param=f"ids[{index}]")
    return DecodeRequest(
        **call.common(model),
        token_ids=token_ids,
        skip_special_tokens=fields.skip_special_tokens,
        is_single=given.is_single,
    )


async def encode_tokens(call: Call, request: TokenizeRequest, tokens: list[list[Token]]) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    texts, time_slice = [], TimeSlice()
    for text in tokens:
        texts.append(await _encode_text(text))
        await time_slice.end_if_over()
    return json_answer(as_list(texts))


async def _encode_text(tokens: list[Token]) -> bytes:
    parts = []
    async for part in steps(len(tokens), _NUMBERS_A_TOKEN):
        named = [TokenInText(*token[:5]) for token in tokens[part]]
        parts.append(msgspec.json.encode(named)[1:-1])
    return as_list(parts)


async def encode_texts(call: Call, request: DecodeRequest, texts: list[str]) -> Answer:
    """POST /decode."""
    return json_answer(texts)


TOKENIZE = Route(
    path="/tokenize",
    decode=decode_tokenize,
    run=Pipeline.tokenize,
    encode=encode_tokens,
    error_shape=tei_error,
    summary="Show the tokens of texts with TEI's API",
    body=TokenizeBody,
    example={"inputs": "The ferry leaves at seven."},
    answers=(list[list[TokenInText]],),
)
DECODE = Route(
    path="/decode",
    decode=decode_decode,
    run=Pipeline.decode,
    encode=encode_texts,
    error_shape=tei_error,
    summary="Make texts of token ids with TEI's API",
    body=DecodeBody,
    example={"ids": [101, 7592, 102]},
    answers=(list[str],),
)
ROUTES = (TOKENIZE, DECODE)
