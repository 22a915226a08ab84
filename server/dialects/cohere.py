"""Cohere's API besides rerank: POST /v1/embed and /v2/embed for texts, and POST /v1/tokenize and /v1/detokenize without
special tokens.

https://docs.cohere.com/reference/embed, https://docs.cohere.com/reference/tokenize. Version 1 answers
`embeddings_floats` if no types are asked for. `inputs` are lists of parts, of which only texts are taken.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec.structs import asdict

from server.dialects.answers import Answer, json_answer
from server.dialects.fields.field import item_field, option
from server.dialects.fields.request import ModelField, PriorityField, read_class
from server.dialects.fields.rows import OnErrorField, OutputDimensionField, read_allows_errors, read_output_dimension
from server.dialects.fields.texts import PromptFields, read_cut, read_prompts
from server.dialects.reading.inputs import TEXT_LIST, Inputs, check_num_items, check_num_strings, read_ids, read_texts
from server.dialects.reading.json_body import NOT_GIVEN, is_given, parse
from server.dialects.route import Call, Route, Stages
from server.dialects.row_answers import (
    FLOATS,
    ROWS,
    DType,
    Encoding,
    RowForm,
    as_list,
    as_list_of,
    headers,
    rows_alone,
    rows_as_json,
)
from server.requests.embeddings import embed_any
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.limits import in_slices, steps
from server.requests.pipeline import Pipeline
from server.requests.work import DecodeRequest, Embedded, EmbedRequest, TokenizeRequest
from tokenizer_pool.tasks import Token
from wire.records import light_dataclass

_FORMS = {
    "float": FLOATS,
    "base64": RowForm(Encoding.BASE64),
    "int8": RowForm(dtype=DType.INT8),
    "uint8": RowForm(dtype=DType.UINT8),
    "binary": RowForm(dtype=DType.BINARY),
    "ubinary": RowForm(dtype=DType.UBINARY),
}
_Type = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(_FORMS)})]

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_SOME_TEXT = {"type": "object", "properties": {"text": {"type": "string", "minLength": 1}}, "required": ["text"]}
CONTENTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"content": {"type": "array", "items": _PART, "contains": _SOME_TEXT}},
        "required": ["content"],
    },
}


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Input(msgspec.Struct):
    content: Annotated[list[_Part], msgspec.Meta(min_length=1)]


_INPUTS = msgspec.json.Decoder(list[_Input])
_META = b'{"api_version":{"version":"1"}}'
_NUMBERS_A_TOKEN = 16  # what writing a token costs, counted in plain numbers


class CohereEmbedBody(PromptFields, ModelField, OutputDimensionField, PriorityField, OnErrorField, kw_only=True):
    """The body of POST /v1/embed and /v2/embed. One of `texts` and `inputs` is needed."""

    texts: Annotated[msgspec.Raw, item_field("what is embedded", TEXT_LIST)] = NOT_GIVEN
    inputs: Annotated[msgspec.Raw, item_field("what is embedded", CONTENTS)] = NOT_GIVEN
    embedding_types: Annotated[
        list[_Type] | None, option("how rows are written, each in all of these ways", by="Cohere", neutral=(["float"],))
    ] = None


@light_dataclass(frozen=True, slots=True, kw_only=True)
class CohereRequest(EmbedRequest):
    """The texts to be embedded, and how the answer looks."""

    version: int
    types: Sequence[str]  # names in _FORMS; () = rows without a name


def _decode_embed(call: Call, fields: CohereEmbedBody, *, version: int) -> CohereRequest:
    model = call.choose(fields, with_prompt=True)
    types = _read_types(fields.embedding_types, version=version)
    call.set_form(_form_of(types))
    allows_errors = read_allows_errors(fields, call)
    given = _read_items(fields, max_items=call.max_items, may_be_empty=allows_errors)
    common = call.common(model)
    common["request_class"] = read_class(fields, call)
    return CohereRequest(
        **common,
        **asdict(given),
        **read_prompts(fields, model, name=call.models.asked_name(fields.model)),
        **read_cut(fields, model),
        dimensions=read_output_dimension(fields, model.dimensions),
        allows_errors=allows_errors,
        version=version,
        types=types,
    )


def _read_items(fields: CohereEmbedBody, *, max_items: int, may_be_empty: bool) -> Inputs[str]:
    """The texts by either field. Raises InvalidRequest, EmptyInput and MalformedBody."""
    has_texts, has_inputs = is_given(fields.texts), is_given(fields.inputs)
    if has_texts == has_inputs:
        problem = "texts and inputs can't both be given" if has_texts else "texts is missing (or inputs)"
        raise InvalidRequest(problem, param="texts")
    if has_inputs:
        texts = read_contents(fields.inputs, "inputs", max_items=max_items, may_be_empty=may_be_empty)
        return Inputs(texts, "inputs")
    given = read_texts(fields.texts, "texts", max_items=max_items, may_be_empty=may_be_empty)
    if given.is_single:
        raise InvalidRequest("texts must be a list of texts", param="texts")
    return given


def read_contents(value: msgspec.Raw, field: str, *, max_items: int, may_be_empty: bool = False) -> list[str]:
    """One text of each input: its parts, each on a line of its own. Items are counted before they are decoded.

    Raises InvalidRequest, EmptyInput and MalformedBody.
    """
    raw = bytes(value)
    check_num_strings(raw, field, max_items=max_items)
    inputs = parse(_INPUTS, raw, field)
    if not inputs:
        raise EmptyInput(f"{field} must not be empty", param=field)
    check_num_items(len(inputs), field, max_items=max_items)
    texts = [_joined(each.content, f"{field}[{index}]") for index, each in enumerate(inputs)]
    if not may_be_empty and not all(texts):
        param = f"{field}[{texts.index('')}]"
        raise EmptyInput(f"{param} must not be empty", param=param)
    return texts


def _joined(parts: list[_Part], name: str) -> str:
    for index, part in enumerate(parts):
        if part.type != "text" or part.text is None:
            param = f"{name}.content[{index}]"
            raise InvalidRequest(f"{param} must be a text: images are not supported", param=param)
    return "\n".join(part.text for part in parts if part.text)


def _read_types(wanted: list[str] | None, *, version: int) -> Sequence[str]:
    """The embedding types asked for, each once. Raises InvalidRequest."""
    if not wanted:
        return () if version == 1 else ("float",)
    wrong = next((f"embedding_types[{index}]" for index, name in enumerate(wanted) if name not in _FORMS), None)
    if wrong is not None:
        raise InvalidRequest(f"{wrong} must be one of {', '.join(_FORMS)}", param=wrong)
    return tuple(dict.fromkeys(wanted))


def _form_of(types: Sequence[str]) -> RowForm:
    """The form of one type, or the one that has several."""
    form = _FORMS[types[0]] if types else FLOATS
    return form if len(types) < 2 else RowForm(form.encoding, several=tuple((name, _FORMS[name]) for name in types))


class ApiVersion(msgspec.Struct):
    """The version of Cohere's API."""

    version: str


class _Tokens(msgspec.Struct):
    input_tokens: int


class _Meta(msgspec.Struct):
    api_version: ApiVersion
    billed_units: _Tokens
    tokens: _Tokens
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET  # of texts that failed alone


async def _encode_embed(call: Call, request: CohereRequest, embedded: Embedded) -> Answer:
    form, ranges = call.form, request.ranges
    if form.has_rows_alone:
        return await rows_alone(embedded, form, ranges)
    kind = b"embeddings_by_type" if request.types else b"embeddings_floats"
    out = bytearray(b'{"id":%b,"response_type":"%b","embeddings":' % (msgspec.json.encode(call.trace.request_id), kind))
    if request.types:
        for index, name in enumerate(request.types):
            out += b'%b"%b":' % (b"," if index else b"{", name.encode())
            out += await rows_as_json(embedded, _FORMS[name], ranges)
        out += b"}"
    else:
        out += await rows_as_json(embedded)
    out += b',"texts":' + await as_list_of(msgspec.json.encode(text) async for text in in_slices(request.texts))
    failed = [error.message for error in (embedded.failed or {}).values()]
    num_tokens = _Tokens(embedded.num_tokens)
    meta = _Meta(ApiVersion(str(request.version)), num_tokens, num_tokens, failed or msgspec.UNSET)
    out += b',"meta":%b}' % msgspec.json.encode(meta)
    return Answer(200, headers(embedded, form, ranges), out)


class EmbeddingsFloats(msgspec.Struct):
    """The answer of version 1 where no types are asked for."""

    id: str
    response_type: Literal["embeddings_floats"]
    embeddings: list[list[float]]
    texts: list[str]
    meta: _Meta


class _ByType(msgspec.Struct, omit_defaults=True):
    floats: list[list[float]] = msgspec.field(name="float", default_factory=list)
    int8: list[list[int]] = []
    uint8: list[list[int]] = []
    binary: list[list[int]] = []
    ubinary: list[list[int]] = []
    base64: list[str] = []


class EmbeddingsByType(msgspec.Struct):
    """The other answer; it has the types that are asked for."""

    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: _ByType
    texts: list[str]
    meta: _Meta


class CohereTokenizeBody(ModelField, kw_only=True):
    """The body of POST /v1/tokenize."""

    text: Annotated[msgspec.Raw, item_field("what is tokenized", {"type": "string"}, is_list=False)]


class CohereDetokenizeBody(ModelField, kw_only=True):
    """The body of POST /v1/detokenize."""

    tokens: Annotated[msgspec.Raw, item_field("the tokens", {"type": "array", "items": {"type": "integer"}})]


def _decode_tokenize(call: Call, fields: CohereTokenizeBody) -> TokenizeRequest:
    model = call.choose(fields)
    given = read_texts(fields.text, "text", max_items=1)
    if not given.is_single:
        raise InvalidRequest("text must be a text", param="text")
    return TokenizeRequest(**call.common(model), **asdict(given), add_special_tokens=False)


def _decode_detokenize(call: Call, fields: CohereDetokenizeBody) -> DecodeRequest:
    model = call.choose(fields)
    given = read_ids(fields.tokens, "tokens", max_items=1)
    if not given.is_single:
        raise InvalidRequest("tokens must be a list of token ids", param="tokens")
    return DecodeRequest(**call.common(model), **asdict(given), skip_special_tokens=False)


async def _encode_tokens(call: Call, request: TokenizeRequest, tokens: list[list[Token]]) -> Answer:
    (own,) = tokens
    ids, texts = [], []
    async for part in steps(len(own), _NUMBERS_A_TOKEN):
        ids.append(msgspec.json.encode([token.token_id for token in own[part]])[1:-1])
        texts.append(msgspec.json.encode([token.text for token in own[part]])[1:-1])
    return json_answer(b'{"tokens":%b,"token_strings":%b,"meta":%b}' % (as_list(ids), as_list(texts), _META))


async def _encode_text(call: Call, request: DecodeRequest, texts: list[str]) -> Answer:
    return json_answer(b'{"text":%b,"meta":%b}' % (msgspec.json.encode(texts[0]), _META))


class _TokensMeta(msgspec.Struct):
    api_version: ApiVersion


class TokensAnswer(msgspec.Struct):
    """The answer of POST /v1/tokenize."""

    tokens: list[int]
    token_strings: list[str]
    meta: _TokensMeta


class TextAnswer(msgspec.Struct):
    """The answer of POST /v1/detokenize."""

    text: str
    meta: _TokensMeta


TOKENIZE = Route(
    path="/v1/tokenize",
    stages=Stages(_decode_tokenize, Pipeline.tokenize, _encode_tokens),
    summary="Show the tokens of a text with Cohere's API",
    body=CohereTokenizeBody,
    answers=(TokensAnswer,),
)
ROUTES = (
    *(
        Route(
            path=f"/v{version}/embed",
            stages=Stages(partial(_decode_embed, version=version), embed_any, _encode_embed),
            summary=f"Embed texts with version {version} of Cohere's API",
            body=CohereEmbedBody,
            one_of=(("texts",), ("inputs",)),
            example={"texts": ["The ferry leaves at seven."], "input_type": "search_document"},
            answers=(EmbeddingsFloats, EmbeddingsByType) if version == 1 else (EmbeddingsByType,),
            raw_answer=ROWS,
        )
        for version in (1, 2)
    ),
    TOKENIZE,
    Route(
        path="/v1/detokenize",
        stages=Stages(_decode_detokenize, Pipeline.decode, _encode_text),
        summary="Make a text of token ids with Cohere's API",
        body=CohereDetokenizeBody,
        example={"tokens": [7592, 2088]},
        answers=(TextAnswer,),
    ),
)
