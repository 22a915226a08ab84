"""text-embeddings-inference's own routes, but for sparse embeddings (sparse.py) and /rerank (rerank.py).

https://huggingface.github.io/text-embeddings-inference, router/src/http/types.rs. `model` is ours, for a server with
several models, and so is how rows are written.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from engine.types import OutputKind
from server.dialects.answers import ERROR_NAMES, Answer, Headers, error_answer, json_answer
from server.dialects.fields.field import Fields, item_field, passed_over
from server.dialects.fields.request import ModelField, RawScoresField
from server.dialects.fields.rows import (
    DimensionsField,
    FormFields,
    NormalizeField,
    OnErrorField,
    read_allows_errors,
    read_dimensions,
    read_form,
    wrong_on_error,
)
from server.dialects.fields.texts import (
    LongTextField,
    PromptFields,
    PromptNameField,
    SkipSpecialTokensField,
    SpecialTokensField,
    TruncationFields,
    read_chunking,
    read_cut,
    read_is_query,
    read_prompt,
    read_prompts,
)
from server.dialects.reading.inputs import (
    ID_LISTS,
    SCHEMA,
    TEXT_LIST,
    TEXTS,
    read_ids,
    read_inputs,
    read_texts,
    read_texts_or_pairs,
)
from server.dialects.reading.json_body import NOT_GIVEN, FieldsReader, is_given, parse
from server.dialects.route import Call, Route, Stages
from server.dialects.row_answers import (
    EVERY_CONTAINER,
    FLOATS,
    RAGGED,
    RAGGED_ONLY,
    ROWS,
    WITH_ROWS_ONLY,
    RowForm,
    as_json,
    as_list,
    as_list_of,
    headers,
    in_container,
    numbers_as_json,
    ragged_answer,
    rows_alone,
    rows_or_null,
)
from server.requests import errors
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.embeddings import embed_any
from server.requests.errors import EmptyInput, InvalidRequest, RequestError
from server.requests.limits import in_slices, steps
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.work import DecodeRequest, Embedded, EmbedRequest, TokenizeRequest, Trace
from tokenizer_pool.tasks import Token

# The statuses that are not those of all dialects.
STATUSES: dict[type[RequestError], int] = {
    errors.InvalidRequest: 422,
    errors.NotTokenizable: 422,
    errors.UnsupportedTask: 424,
    errors.EngineFailed: 424,
}
_COMPUTE_TYPE = b"gpu+optimized"  # TEI says so on a CPU too
_NUMBERS_A_TOKEN = 16  # what writing a token costs, counted in plain numbers


def tei_error(error: RequestError, **beside: str) -> Answer:
    """An error in TEI's shape (ErrorResponse)."""
    content = {"error": tei_message(error), "error_type": ERROR_NAMES[type(error)].tei_type, **beside}
    return error_answer(STATUSES.get(type(error), errors.ERRORS[type(error)].status), content, error)


def tei_error_for_all(error: RequestError) -> Answer:
    """TEI's error with Cohere's `message` and Voyage's `detail` beside it, for paths that serve their clients too."""
    return tei_error(error, message=error.message, detail=error.message)


def tei_message(error: RequestError) -> str:
    """Our message, but for what is empty, of which clients may know TEI's."""
    return f"`{error.param}` cannot be empty" if isinstance(error, errors.EmptyInput) else error.message


def timing_headers(trace: Trace) -> Headers:
    """TEI's headers: times are whole milliseconds of the request."""
    total = _milliseconds(trace.elapsed())
    return [
        (b"x-compute-type", _COMPUTE_TYPE),
        (b"x-compute-time", total),
        (b"x-compute-characters", b"%d" % trace.num_characters),
        (b"x-compute-tokens", b"%d" % trace.num_tokens),
        (b"x-total-time", total),
        (b"x-tokenization-time", _milliseconds(trace.tokenize_seconds)),
        (b"x-queue-time", _milliseconds(trace.queue_seconds)),
        (b"x-inference-time", _milliseconds(trace.compute_seconds)),
    ]


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % int(1000 * seconds)


# POST /embed and /embed_all.


class InputsFields(PromptFields, ModelField, kw_only=True):
    """What the bodies of all routes that embed have in common."""

    inputs: Annotated[msgspec.Raw, item_field("what is embedded", SCHEMA)]


class EmbedBody(InputsFields, NormalizeField, DimensionsField, LongTextField, OnErrorField, FormFields, kw_only=True):
    """The body of POST /embed; how rows are written is ours."""


class EmbedAllBody(InputsFields, OnErrorField, FormFields, kw_only=True):
    """The body of POST /embed_all; how rows are written is ours."""


def read_request(call: Call, fields: InputsFields, *, may_be_empty: bool = False) -> EmbedRequest:
    """Reads what is the same for all routes that embed. Raises RequestError, naming the field or index."""
    model = call.choose(fields, with_prompt=True)
    given = read_inputs(fields.inputs, "inputs", max_items=call.max_items, may_be_empty=may_be_empty)
    return EmbedRequest(
        **call.common(model),
        **asdict(given),
        **read_prompts(fields, model, name=call.models.asked_name(fields.model), are_ids=given.has_ids),
        **read_cut(fields, model),
    )


def asks_queries(call: Call, fields: InputsFields, model: ServedModel) -> bool:
    """Whether the inputs are queries, else they are documents. Raises InvalidRequest."""
    return read_is_query(fields, model, name=call.models.asked_name(fields.model))


def _decode_embed(call: Call, fields: EmbedBody) -> EmbedRequest:
    call.set_form(read_form(fields), offers=EVERY_CONTAINER if fields.on_error is None else WITH_ROWS_ONLY)
    allows_errors = read_allows_errors(fields, call)
    request = read_request(call, fields, may_be_empty=allows_errors)
    return replace(
        request,
        dimensions=read_dimensions(fields.dimensions, request.model.dimensions),
        normalize=fields.normalize is not False,
        allows_errors=allows_errors,
        chunking=read_chunking(
            fields, model=request.model, are_texts=list not in request.kinds, allows_errors=allows_errors
        ),
    )


def _decode_embed_all(call: Call, fields: EmbedAllBody) -> EmbedRequest:
    call.set_form(read_form(fields), offers=RAGGED_ONLY)
    allows_errors = read_allows_errors(fields, call, are_ragged=True)
    request = replace(read_request(call, fields, may_be_empty=allows_errors), allows_errors=allows_errors)
    return for_tokens(request, is_query=lambda: asks_queries(call, fields, request.model))


def for_tokens(request: EmbedRequest, *, is_query: Callable[[], bool]) -> EmbedRequest:
    """This request's texts for rows of their tokens. `is_query` is called where a model treats queries differently.

    Raises InvalidRequest.
    """
    outputs = request.model.outputs
    if OutputKind.MULTI_VECTOR in outputs and OutputKind.TOKENS not in outputs:
        if request.allows_errors:
            raise wrong_on_error("can't be null with this model, whose rows are for late interaction")
        num_queries = request.num_items if is_query() else 0
        return replace(request, outputs=OutputKind.MULTI_VECTOR, num_queries=num_queries, query_prompt=request.prompt)
    return replace(request, outputs=OutputKind.TOKENS, normalize=False)


async def _encode_embed(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    form, ranges, timing = call.form, request.ranges, timing_headers(call.trace)
    if form.has_rows_alone:
        return await rows_alone(embedded, form, ranges, beside=timing)
    own = [*headers(embedded, form, ranges), *timing]
    if embedded.failed:
        return Answer(200, own, await as_list_of(rows_or_null(embedded, form, ranges)))
    return Answer(200, own, await in_container(embedded.rows, form, ranges))


async def _encode_embed_all(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    timing = timing_headers(call.trace)
    if call.form.has_rows_alone:
        return await ragged_answer(embedded, call.form, beside=timing)
    own = [*headers(embedded, call.form), *timing]
    return Answer(200, own, await as_list_of(token_rows_by_item(embedded, call.form)))


async def token_rows_by_item(embedded: Embedded, form: RowForm = FLOATS) -> AsyncIterator[bytes | bytearray]:
    """The rows of one item after the other, each a list in JSON, or null. The model's ranges are not those of token
    rows."""
    assert embedded.offsets is not None
    failed = embedded.failed or {}
    async for index, (start, stop) in in_slices(enumerate(pairwise(embedded.offsets.tolist()))):
        yield b"null" if index in failed else await as_json(embedded.rows[start:stop], form)


# POST /similarity.

_SIMILARITY_SCHEMA = {
    "type": "object",
    "properties": {
        "source_sentence": {"type": "string"},
        "sentences": TEXT_LIST,
    },
    "required": ["source_sentence", "sentences"],
}
_PARAMETERS_SCHEMA = msgspec.json.schema_components([PromptFields])[1]["PromptFields"]


class SimilarityInputs(Fields):
    """A sentence, and those it is compared with."""

    source_sentence: Annotated[str, item_field("the sentence", is_list=False)]
    sentences: Annotated[msgspec.Raw, item_field("those it is compared with")]


class SimilarityBody(ModelField, kw_only=True):
    """The body of POST /similarity."""

    inputs: Annotated[msgspec.Raw, passed_over("the sentences", schema=_SIMILARITY_SCHEMA, inner=SimilarityInputs)]
    parameters: Annotated[
        msgspec.Raw,
        passed_over("the options of the texts", schema=_PARAMETERS_SCHEMA, inner=PromptFields, changes_result=True),
    ] = NOT_GIVEN


_PARAMETERS = FieldsReader(PromptFields)
_SIMILARITY_INPUTS = msgspec.json.Decoder(SimilarityInputs)


def _decode_similarity(call: Call, fields: SimilarityBody) -> EmbedRequest:
    """The source sentence is the first of the request's texts."""
    model = call.choose(fields, with_prompt=True)
    inputs = parse(_SIMILARITY_INPUTS, fields.inputs, "inputs")
    given = read_texts(inputs.sentences, "inputs.sentences", max_items=call.max_items)
    if given.is_single:
        raise InvalidRequest("inputs.sentences must be a list of texts", param="inputs.sentences")
    if not inputs.source_sentence:
        raise EmptyInput("inputs.source_sentence must not be empty", param="inputs.source_sentence")
    parameters = _PARAMETERS.read(fields.parameters, "parameters") if is_given(fields.parameters) else PromptFields()
    call.form = FLOATS
    return EmbedRequest(
        **call.common(model),
        items=[inputs.source_sentence, *given.items],
        **read_prompts(parameters, model, name=call.models.asked_name(fields.model)),
        **read_cut(parameters, model),
        normalize=True,
        field="inputs.sentences",
        first_field="inputs.source_sentence",
    )


async def _encode_similarity(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Cosines of the first row with each of the others; all have length 1."""
    own = [*headers(embedded), *timing_headers(call.trace)]
    return Answer(200, own, numbers_as_json(np.einsum("nd,d->n", embedded.rows[1:], embedded.rows[0])))


# POST /predict: labels and scores of texts or of pairs, in the form that Infinity and Hugging Face have too.

_SOME_TEXT = {"type": "string", "minLength": 1}
_SIDES = {"type": "array", "items": {"type": "string"}, "contains": _SOME_TEXT, "minItems": 1, "maxItems": 2}
_TEXTS_OR_PAIRS = {"anyOf": [{"type": "string"}, _SIDES, {"type": "array", "items": _SIDES}]}


class PredictBody(TruncationFields, ModelField, RawScoresField, kw_only=True):
    """The body of POST /predict."""

    inputs: Annotated[msgspec.Raw, item_field("what is classified", _TEXTS_OR_PAIRS)]


class Prediction(msgspec.Struct):
    """One label with its score, in TEI's and Infinity's form."""

    score: float
    label: str


def _decode_predict(call: Call, fields: PredictBody) -> ClassifyRequest:
    model = call.choose(fields)
    given = read_texts_or_pairs(fields.inputs, "inputs", max_items=call.max_items)
    call.set_form()
    return ClassifyRequest(
        **call.common(model),
        **asdict(given),
        prompt=prompt_for(model),
        **read_cut(fields, model),
        raw_scores=bool(fields.raw_scores),
        is_bounded=True,
        field="inputs",
    )


def prompt_for(model: ServedModel) -> str:
    """The prompt before each text, or the instruction that goes into the template of a model that has one."""
    return model.default_prompt if model.instruction is None else model.instruction


async def _encode_predict(call: Call, request: ClassifyRequest, scored: Embedded) -> Answer:
    timing = timing_headers(call.trace)
    if call.form.has_rows_alone:
        return await rows_alone(scored, call.form, beside=timing)
    items = await predictions(scored.rows, labels_of(request.model, scored.rows.shape[1]))
    content = items[0] if request.is_single else as_list(items)
    return Answer(200, [*headers(scored), *timing], content)


async def predictions(scores: NDArray[np.float32], labels: Sequence[str], *, top_k: int | None = None) -> list[bytes]:
    """Writes for each row of float32 [items, labels] a list of objects with label and score, the highest first.

    `top_k` of them; None = all.
    """
    ends, items = [b',"label":%b}' % msgspec.json.encode(label) for label in labels], []
    async for row in in_slices(scores):
        order = np.argsort(-row, kind="stable")[:top_k]
        numbers = numbers_as_json(row[order])[1:-1].split(b",")
        places = zip(numbers, order.tolist(), strict=True)
        items.append(as_list([b'{"score":%b%b' % (number, ends[at]) for number, at in places]))
    return items


# POST /tokenize and /decode: texts to tokens, and token ids to texts.


class TokenizeBody(ModelField, PromptNameField, SpecialTokensField, kw_only=True):
    """The body of POST /tokenize."""

    inputs: Annotated[msgspec.Raw, item_field("what is tokenized", TEXTS)]


class DecodeBody(ModelField, SkipSpecialTokensField, kw_only=True):
    """The body of POST /decode."""

    ids: Annotated[msgspec.Raw, item_field("the tokens", ID_LISTS)]


class TokenInText(msgspec.Struct):
    """One token; `start` and `stop` are characters of the text, null for a token that is not in it."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def _decode_tokenize(call: Call, fields: TokenizeBody) -> TokenizeRequest:
    model = call.choose(fields, with_prompt=True)
    given = read_texts(fields.inputs, "inputs", max_items=call.max_items)
    name = call.models.asked_name(fields.model)
    return TokenizeRequest(
        **call.common(model),
        **asdict(given),
        prompt=read_prompt(PromptFields(prompt_name=fields.prompt_name), model, name=name),
        add_special_tokens=fields.add_special_tokens,
    )


def _decode_decode(call: Call, fields: DecodeBody) -> DecodeRequest:
    model = call.choose(fields)
    given = read_ids(fields.ids, "ids", max_items=call.max_items)
    for index, ids in enumerate(given.items):
        if not ids:
            raise EmptyInput(f"ids[{index}] must not be empty", param=f"ids[{index}]")
    return DecodeRequest(**call.common(model), **asdict(given), skip_special_tokens=fields.skip_special_tokens)


async def _encode_tokens(call: Call, request: TokenizeRequest, tokens: list[list[Token]]) -> Answer:
    texts = []
    async for of_text in in_slices(tokens):
        parts = []
        async for part in steps(len(of_text), _NUMBERS_A_TOKEN):
            named = [TokenInText(*token[:5]) for token in of_text[part]]
            parts.append(msgspec.json.encode(named)[1:-1])
        texts.append(as_list(parts))
    return json_answer(as_list(texts))


async def _encode_texts(call: Call, request: DecodeRequest, texts: list[str]) -> Answer:
    return json_answer(texts)


tei_route = partial(Route, error_shape=tei_error)
EMBED_ROUTES = (
    tei_route(
        path="/embed",
        stages=Stages(_decode_embed, embed_any, _encode_embed),
        summary="Embed texts with TEI's API",
        body=EmbedBody,
        answers=(list[list[float] | str | None],),
        raw_answer=ROWS,
    ),
    tei_route(
        path="/embed_all",
        stages=Stages(_decode_embed_all, embed_any, _encode_embed_all),
        summary="Embed each token of texts with TEI's API",
        body=EmbedAllBody,
        answers=(list[list[list[float] | str] | None],),
        raw_answer=RAGGED,
    ),
    tei_route(
        path="/similarity",
        stages=Stages(_decode_similarity, Pipeline.embed, _encode_similarity),
        summary="Compare a sentence with others with TEI's API",
        body=SimilarityBody,
        example={"inputs": {"source_sentence": "When does the boat go?", "sentences": ["The ferry leaves at seven."]}},
        answers=(list[float],),
    ),
)
TOKENIZE = tei_route(
    path="/tokenize",
    stages=Stages(_decode_tokenize, Pipeline.tokenize, _encode_tokens),
    summary="Show the tokens of texts with TEI's API",
    body=TokenizeBody,
    answers=(list[list[TokenInText]],),
)
ROUTES = (
    tei_route(
        path="/decode",
        stages=Stages(_decode_decode, Pipeline.decode, _encode_texts),
        summary="Make texts of token ids with TEI's API",
        body=DecodeBody,
        example={"ids": [101, 7592, 102]},
        answers=(list[str],),
    ),
    tei_route(
        path="/predict",
        stages=Stages(_decode_predict, classify, _encode_predict),
        summary="Classify texts or pairs with TEI's API",
        body=PredictBody,
        answers=(list[Prediction], list[list[Prediction]]),
        raw_answer=ROWS,
    ),
)
