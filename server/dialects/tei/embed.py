"""text-embeddings-inference's routes for embedding models: /embed, /embed_all and /similarity.

https://huggingface.github.io/text-embeddings-inference
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np

from engine.types import OutputKind
from server.dialects.reading.forms import read_form
from server.dialects.reading.inputs import TEXT_LIST, read_texts
from server.dialects.reading.json_body import parse
from server.dialects.reading.known_fields import BodyReader
from server.dialects.reading.long_texts import read_chunking
from server.dialects.reading.on_error import read_on_error
from server.dialects.reading.prompts import PromptFields, read_adapter, read_is_query, read_prompt
from server.dialects.reading.row_numbers import read_dimensions
from server.dialects.reading.truncation import read_max_tokens, read_truncation
from server.dialects.route import Answer, Call, Route
from server.dialects.tei.shared import InputsBody, read_request, tei_error, timing_headers
from server.dialects.writing.forms import EVERY_CONTAINER, FLOATS, RAGGED_ONLY, WITH_ROWS_ONLY, RowForm, numbers_as_json
from server.dialects.writing.ragged import RAGGED, ragged_answer
from server.dialects.writing.rows import ROWS, as_json, as_list_of, headers, in_container, rows_alone, rows_or_null
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.inputs.partial import embed
from server.requests.late_interaction import embed_tokens
from server.requests.pipeline import Pipeline
from server.requests.time_slices import TimeSlice
from server.requests.trace import Trace
from server.requests.work import Embedded, EmbedRequest

_SIMILARITY_SCHEMA = {
    "type": "object",
    "properties": {
        "source_sentence": {"type": "string"},
        "sentences": TEXT_LIST,
    },
    "required": ["source_sentence", "sentences"],
}


_NOT_GIVEN = b"null"
_PARAMETERS_SCHEMA = msgspec.json.schema_components([PromptFields])[1]["PromptFields"]


class EmbedBody(InputsBody, kw_only=True):
    """The body of POST /embed; how rows are written is ours."""

    normalize: bool | None = None  # None = true
    dimensions: int | None = None
    long_text: str | None = None  # ours
    on_error: str | None = None
    encoding_format: str | None = None
    embed_dtype: str | None = None
    endianness: str | None = None


class EmbedAllBody(InputsBody, kw_only=True):
    """The body of POST /embed_all; how rows are written is ours."""

    on_error: str | None = None
    encoding_format: str | None = None
    embed_dtype: str | None = None
    endianness: str | None = None


class SimilarityInputs(msgspec.Struct):
    """A sentence, and those it is compared with."""

    source_sentence: str
    sentences: msgspec.Raw


class SimilarityBody(msgspec.Struct, kw_only=True):
    """The body of POST /similarity."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_SIMILARITY_SCHEMA)]
    parameters: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_PARAMETERS_SCHEMA)] = msgspec.field(
        default_factory=lambda: msgspec.Raw(_NOT_GIVEN)
    )
    model: str | None = None


_EMBED = BodyReader(EmbedBody)
_EMBED_ALL = BodyReader(EmbedAllBody)
_SIMILARITY = BodyReader(SimilarityBody)
_PARAMETERS = BodyReader(PromptFields)
_SIMILARITY_INPUTS = msgspec.json.Decoder(SimilarityInputs)


def decode_embed(call: Call, body: bytes) -> EmbedRequest:
    """POST /embed. As all decoders here raises RequestError, naming the field or index."""
    fields = _EMBED.read(body)
    call.set_form(_read_form(fields), offers=EVERY_CONTAINER if fields.on_error is None else WITH_ROWS_ONLY)
    allows_errors = read_on_error(fields.on_error, call)
    request = read_request(call, fields, may_be_empty=allows_errors)
    return replace(
        request,
        dimensions=read_dimensions(fields.dimensions, request.model.dimensions),
        normalize=fields.normalize is not False,
        allows_errors=allows_errors,
        chunking=read_chunking(
            fields.long_text, model=request.model, are_texts=request.token_ids is None, allows_errors=allows_errors
        ),
    )


def decode_embed_all(call: Call, body: bytes) -> EmbedRequest:
    """POST /embed_all."""
    fields = _EMBED_ALL.read(body)
    call.set_form(_read_form(fields), offers=RAGGED_ONLY)
    allows_errors = read_on_error(fields.on_error, call, are_ragged=True)
    request = replace(read_request(call, fields, may_be_empty=allows_errors), allows_errors=allows_errors)
    name = call.models.asked_name(fields.model)
    return for_tokens(request, is_query=lambda: read_is_query(fields, request.model, name=name))


def for_tokens(request: EmbedRequest, *, is_query: Callable[[], bool]) -> EmbedRequest:
    """The same texts for rows of their tokens. `is_query` is called where a model treats queries differently.

    Raises InvalidRequest.
    """
    outputs = request.model.outputs
    if OutputKind.MULTI_VECTOR in outputs and OutputKind.TOKENS not in outputs:
        if request.allows_errors:
            raise InvalidRequest(
                "on_error can't be null with this model, whose rows are for late interaction", param="on_error"
            )
        num_queries = request.num_items if is_query() else 0
        return replace(request, outputs=OutputKind.MULTI_VECTOR, num_queries=num_queries, query_prompt=request.prompt)
    return replace(request, outputs=OutputKind.TOKENS, normalize=False)


async def _embed_all(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    return await (embed if request.allows_errors else embed_tokens)(pipeline, request, trace)


def _read_form(fields: EmbedBody | EmbedAllBody) -> RowForm:
    return read_form(fields.encoding_format, embed_dtype=fields.embed_dtype, endianness=fields.endianness)


def decode_similarity(call: Call, body: bytes) -> EmbedRequest:
    """POST /similarity: the source sentence is the first of the request's texts."""
    fields = _SIMILARITY.read(body)
    model = call.models.choose(fields.model, with_prompt=True)
    inputs = parse(_SIMILARITY_INPUTS, fields.inputs, "inputs")
    given = read_texts(inputs.sentences, "inputs.sentences", max_items=call.max_items)
    if given.is_single:
        raise InvalidRequest("inputs.sentences must be a list of texts", param="inputs.sentences")
    if not inputs.source_sentence:
        raise EmptyInput("inputs.source_sentence must not be empty", param="inputs.source_sentence")
    given_parameters = bytes(fields.parameters) != _NOT_GIVEN
    parameters = _PARAMETERS.read(fields.parameters, "parameters") if given_parameters else PromptFields()
    call.form = FLOATS
    return EmbedRequest(
        model=model,
        texts=[inputs.source_sentence, *(given.texts or ())],
        prompt=read_prompt(parameters, given, model, name=call.models.asked_name(fields.model)),
        adapter=read_adapter(parameters, model, name=call.models.asked_name(fields.model)),
        truncation=read_truncation(parameters, model),
        max_tokens=read_max_tokens(parameters, model),
        normalize=True,
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        field="inputs.sentences",
        first_field="inputs.source_sentence",
    )


async def encode_embed(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Rows of texts. As in all encoders, long work is done in slices, so that other requests run in between."""
    form, ranges, timing = call.form or FLOATS, request.ranges, timing_headers(call.trace)
    if form.has_rows_alone:
        return await rows_alone(embedded, form, ranges, beside=timing)
    own = [*headers(embedded, form, ranges), *timing]
    if embedded.failed:
        return Answer(200, own, await as_list_of(rows_or_null(embedded, form, ranges)))
    return Answer(200, own, await in_container(embedded.rows, form, ranges))


async def encode_embed_all(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Rows of tokens."""
    timing = timing_headers(call.trace)
    if call.form and call.form.has_rows_alone:
        return await ragged_answer(embedded, call.form, beside=timing)
    form = call.form or FLOATS
    return Answer(200, [*headers(embedded, form), *timing], await as_list_of(token_rows_by_item(embedded, form)))


async def token_rows_by_item(embedded: Embedded, form: RowForm = FLOATS) -> AsyncIterator[bytes | bytearray]:
    """The rows of one item after the other, each a list in JSON, or null. The model's ranges are not those of token
    rows."""
    assert embedded.offsets is not None
    time_slice, failed = TimeSlice(), embedded.failed or {}
    for index, (start, stop) in enumerate(pairwise(embedded.offsets.tolist())):
        yield b"null" if index in failed else await as_json(embedded.rows[start:stop], form)
        await time_slice.end_if_over()


async def encode_similarity(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Cosines of the first row with each of the others; all have length 1."""
    own = [*headers(embedded), *timing_headers(call.trace)]
    return Answer(200, own, numbers_as_json(np.einsum("nd,d->n", embedded.rows[1:], embedded.rows[0])))


ROUTES = (
    Route(
        path="/embed",
        decode=decode_embed,
        run=embed,
        encode=encode_embed,
        error_shape=tei_error,
        summary="Embed texts with TEI's API",
        body=EmbedBody,
        example={"inputs": "The ferry leaves at seven."},
        answers=(list[list[float] | str | None],),
        raw_answer=ROWS,
    ),
    Route(
        path="/embed_all",
        decode=decode_embed_all,
        run=_embed_all,
        encode=encode_embed_all,
        error_shape=tei_error,
        summary="Embed each token of texts with TEI's API",
        body=EmbedAllBody,
        example={"inputs": "The ferry leaves at seven."},
        answers=(list[list[list[float] | str] | None],),
        raw_answer=RAGGED,
    ),
    Route(
        path="/similarity",
        decode=decode_similarity,
        run=Pipeline.embed,
        encode=encode_similarity,
        error_shape=tei_error,
        summary="Compare a sentence with others with TEI's API",
        body=SimilarityBody,
        example={"inputs": {"source_sentence": "When does the boat go?", "sentences": ["The ferry leaves at seven."]}},
        answers=(list[float],),
    ),
)
