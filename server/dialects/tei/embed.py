"""text-embeddings-inference's routes for embedding models: /embed, /embed_all, /similarity and /embed_sparse.

https://huggingface.github.io/text-embeddings-inference. /embed_hybrid is ours in the style of these: dense, sparse and
late-interaction embeddings of each text from one forward, as bge-m3 gives them.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np

from engine.types import OutputKind
from server.dialects.reading.inputs import TEXT_LIST, read_texts
from server.dialects.reading.json_body import NOT_GIVEN, is_given, parse
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.reading.row_options import read_allows_errors, read_dimensions, read_form
from server.dialects.reading.text_options import (
    PromptFields,
    read_chunking,
    read_cut,
    read_is_query,
    read_prompts,
)
from server.dialects.route import Answer, Call, Route
from server.dialects.row_answers import (
    RAGGED,
    ROWS,
    as_json,
    as_list,
    as_list_of,
    headers,
    in_container,
    ragged_answer,
    rows_alone,
    rows_or_null,
    sparse_bytes,
    sparse_headers,
)
from server.dialects.row_forms import EVERY_CONTAINER, FLOATS, RAGGED_ONLY, WITH_ROWS_ONLY, RowForm, numbers_as_json
from server.dialects.tei.shared import InputsBody, read_request, tei_error, timing_headers
from server.requests.embeddings import embed_any, embed_tokens
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.late_interaction import rows_that_count
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.rows import finish
from server.requests.time_slices import TimeSlice, steps
from server.requests.trace import Trace
from server.requests.work import Computed, Embedded, EmbedRequest

_SIMILARITY_SCHEMA = {
    "type": "object",
    "properties": {
        "source_sentence": {"type": "string"},
        "sentences": TEXT_LIST,
    },
    "required": ["source_sentence", "sentences"],
}
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
    parameters: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_PARAMETERS_SCHEMA)] = NOT_GIVEN
    model: str | None = None


_EMBED = FieldsReader(EmbedBody)
_EMBED_ALL = FieldsReader(EmbedAllBody)
_SIMILARITY = FieldsReader(SimilarityBody)
_PARAMETERS = FieldsReader(PromptFields)
_SIMILARITY_INPUTS = msgspec.json.Decoder(SimilarityInputs)


def decode_embed(call: Call, body: bytes) -> EmbedRequest:
    """POST /embed. As all decoders here raises RequestError, naming the field or index."""
    fields = _EMBED.read(body)
    call.set_form(_read_form(fields), offers=EVERY_CONTAINER if fields.on_error is None else WITH_ROWS_ONLY)
    allows_errors = read_allows_errors(fields.on_error, call)
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
    allows_errors = read_allows_errors(fields.on_error, call, are_ragged=True)
    request = replace(read_request(call, fields, may_be_empty=allows_errors), allows_errors=allows_errors)
    name = call.models.asked_name(fields.model)
    return for_tokens(request, is_query=lambda: read_is_query(fields, request.model, name=name))


def for_tokens(request: EmbedRequest, *, is_query: Callable[[], bool]) -> EmbedRequest:
    """This request's texts for rows of their tokens. `is_query` is called where a model treats queries differently.

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
    return await (embed_any if request.allows_errors else embed_tokens)(pipeline, request, trace)


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
    given_parameters = is_given(fields.parameters)
    parameters = _PARAMETERS.read(fields.parameters, "parameters") if given_parameters else PromptFields()
    call.form = FLOATS
    return EmbedRequest(
        **call.common(model),
        texts=[inputs.source_sentence, *(given.texts or ())],
        **read_prompts(parameters, model, name=call.models.asked_name(fields.model)),
        **read_cut(parameters, model),
        normalize=True,
        field="inputs.sentences",
        first_field="inputs.source_sentence",
    )


async def encode_embed(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Write rows of texts. As in all encoders, long work is done in slices, so that other requests run in between."""
    form, ranges, timing = call.form, request.ranges, timing_headers(call.trace)
    if form.has_rows_alone:
        return await rows_alone(embedded, form, ranges, beside=timing)
    own = [*headers(embedded, form, ranges), *timing]
    if embedded.failed:
        return Answer(200, own, await as_list_of(rows_or_null(embedded, form, ranges)))
    return Answer(200, own, await in_container(embedded.rows, form, ranges))


async def encode_embed_all(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Write rows of tokens."""
    timing = timing_headers(call.trace)
    if call.form.has_rows_alone:
        return await ragged_answer(embedded, call.form, beside=timing)
    own = [*headers(embedded, call.form), *timing]
    return Answer(200, own, await as_list_of(token_rows_by_item(embedded, call.form)))


async def token_rows_by_item(embedded: Embedded, form: RowForm = FLOATS) -> AsyncIterator[bytes | bytearray]:
    """The rows of one item after the other, each a list in JSON, or null. The model's ranges are not those of token
    rows."""
    assert embedded.offsets is not None
    time_slice, failed = TimeSlice(), embedded.failed or {}
    for index, (start, stop) in enumerate(pairwise(embedded.offsets.tolist())):
        yield b"null" if index in failed else await as_json(embedded.rows[start:stop], form)
        await time_slice.end_if_over()


async def encode_similarity(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Write cosines of the first row with each of the others; all have length 1."""
    own = [*headers(embedded), *timing_headers(call.trace)]
    return Answer(200, own, numbers_as_json(np.einsum("nd,d->n", embedded.rows[1:], embedded.rows[0])))


ROUTES = (
    Route(
        path="/embed",
        decode=decode_embed,
        run=embed_any,
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


# POST /embed_sparse: weights of vocabulary entries, from models that give them.

_NUMBERS_AN_ENTRY = 8  # what writing an entry costs, counted in plain numbers


class SparseEntry(msgspec.Struct):
    """One vocabulary entry with its weight."""

    index: int
    value: float


_EMBED_SPARSE = FieldsReader(InputsBody)


def decode_embed_sparse(call: Call, body: bytes) -> EmbedRequest:
    """The request of a body. Raises RequestError, naming the field or index."""
    fields = _EMBED_SPARSE.read(body)
    request = read_request(call, fields)
    call.set_form(offers=RAGGED_ONLY)
    name = call.models.asked_name(fields.model)
    return for_sparse(request, is_query=read_is_query(fields, request.model, name=name))


def for_sparse(request: EmbedRequest, *, is_query: bool) -> EmbedRequest:
    """This request's texts for sparse rows."""
    return replace(
        request,
        outputs=OutputKind.SPARSE,
        normalize=False,
        num_queries=request.num_items if is_query else 0,
        query_prompt=request.prompt,
    )


async def encode_embed_sparse(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    timing = timing_headers(call.trace)
    if call.form.has_rows_alone:
        return Answer(200, [*sparse_headers(embedded), *timing], sparse_bytes(embedded))
    return Answer(200, [*headers(embedded), *timing], await as_list_of(sparse_by_item(embedded)))


async def sparse_by_item(embedded: Embedded) -> AsyncIterator[bytes]:
    """The entries of one item after the other, each a list in JSON."""
    assert embedded.offsets is not None
    time_slice = TimeSlice()
    for start, stop in pairwise(embedded.offsets.tolist()):
        rows, entries = embedded.rows[start:stop], list[bytes]()
        async for part in steps(len(rows), _NUMBERS_AN_ENTRY):
            weights = numbers_as_json(rows[part, 1])[1:-1].split(b",")
            indices = rows[part, 0].astype(np.int64).tolist()
            entries += [
                b'{"index":%d,"value":%b}' % (index, weight) for index, weight in zip(indices, weights, strict=True)
            ]
        yield as_list(entries)
        await time_slice.end_if_over()


EMBED_SPARSE = Route(
    path="/embed_sparse",
    decode=decode_embed_sparse,
    run=Pipeline.embed,
    encode=encode_embed_sparse,
    error_shape=tei_error,
    summary="Make sparse embeddings with TEI's API",
    body=InputsBody,
    example={"inputs": "The ferry leaves at seven."},
    answers=(list[list[SparseEntry]],),
    raw_answer="uint32 offsets [items + 1], then uint32 indices, then as many float32 values",
)


# POST /embed_hybrid.

KINDS = {
    "dense": OutputKind.POOLED,
    "sparse": OutputKind.SPARSE,
    "multi_vector": OutputKind.MULTI_VECTOR,
}
_ALL_KINDS = OutputKind.POOLED | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
_MAX_OUTPUTS = 8  # a name may be there twice
_OUTPUTS = {
    "type": "array",
    "items": {"enum": list(KINDS)},
    "minItems": 1,
    "maxItems": _MAX_OUTPUTS,
    "description": "what each item of the answer has; by default all that the model gives",
}
_MAX_OUTPUTS_BYTES = 200  # of JSON; a list this short is decoded at once


class EmbedHybridBody(InputsBody, kw_only=True):
    """The body of POST /embed_hybrid."""

    outputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_OUTPUTS)] = NOT_GIVEN
    normalize: bool | None = None  # of the dense rows; None = true


class HybridItem(msgspec.Struct):
    """All that was asked for of one text."""

    dense: list[float] | msgspec.UnsetType = msgspec.UNSET
    sparse: list[SparseEntry] | msgspec.UnsetType = msgspec.UNSET
    multi_vector: list[list[float]] | msgspec.UnsetType = msgspec.UNSET


_EMBED_HYBRID = FieldsReader(EmbedHybridBody)
_KIND_NAMES = msgspec.json.Decoder(list[str])


def decode_embed_hybrid(call: Call, body: bytes) -> EmbedRequest:
    """The request of a body. Raises RequestError, naming the field or index."""
    fields = _EMBED_HYBRID.read(body)
    request = read_request(call, fields)
    call.form = FLOATS
    return replace(
        request,
        outputs=_read_outputs(fields.outputs, request.model),
        normalize=fields.normalize is not False,
        num_queries=request.num_items
        if read_is_query(fields, request.model, name=call.models.asked_name(fields.model))
        else 0,
        query_prompt=request.prompt,
    )


def _read_outputs(wanted: msgspec.Raw, model: ServedModel) -> OutputKind:
    """The pipeline refuses what the model can't give."""
    raw = bytes(wanted)
    if not is_given(wanted):
        return (model.outputs & _ALL_KINDS) or _ALL_KINDS
    names = parse(_KIND_NAMES, raw, "outputs") if len(raw) <= _MAX_OUTPUTS_BYTES else []
    if not 0 < len(names) <= _MAX_OUTPUTS or not KINDS.keys() >= set(names):
        raise InvalidRequest(f"outputs must be a list of one or more of {', '.join(KINDS)}", param="outputs")
    outputs = OutputKind(0)
    for name in names:
        outputs |= KINDS[name]
    return outputs


async def encode_embed_hybrid(call: Call, request: EmbedRequest, computed: Computed) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    by_kind = {
        name: await _rows_of_kind(kind, computed, request) for name, kind in KINDS.items() if kind & request.outputs
    }
    own = [*headers(next(iter(by_kind.values()))), *timing_headers(call.trace)]
    return Answer(200, own, await as_list_of(_hybrid_items(by_kind, request.num_items)))


async def _hybrid_items(by_kind: dict[str, Embedded], num_items: int) -> AsyncIterator[bytes]:
    writers = [(name.encode(), _kind_by_item(name, embedded)) for name, embedded in by_kind.items()]
    for _ in range(num_items):
        values: list[bytes | bytearray] = [await anext(writer) for _, writer in writers]
        yield b"{%b}" % b",".join(b'"%b":' % name + value for (name, _), value in zip(writers, values, strict=True))


async def _rows_of_kind(kind: OutputKind, computed: Computed, request: EmbedRequest) -> Embedded:
    if kind is OutputKind.MULTI_VECTOR:
        return await rows_that_count(computed, request)
    rows = computed.results[kind]
    values = finish(rows.values, request) if kind is OutputKind.POOLED else rows.values
    return Embedded(values, computed.num_tokens, computed.tokens.truncated, rows.offsets)


def _kind_by_item(name: str, embedded: Embedded) -> AsyncIterator[bytes | bytearray]:
    match name:
        case "dense":
            return _dense_by_item(embedded)
        case "sparse":
            return sparse_by_item(embedded)
        case _:
            return token_rows_by_item(embedded)


async def _dense_by_item(embedded: Embedded) -> AsyncIterator[bytes]:
    time_slice = TimeSlice()
    for row in embedded.rows:
        yield numbers_as_json(row)
        await time_slice.end_if_over()


EMBED_HYBRID = Route(
    path="/embed_hybrid",
    decode=decode_embed_hybrid,
    run=Pipeline.compute,
    encode=encode_embed_hybrid,
    error_shape=tei_error,
    summary="Make dense, sparse and late-interaction embeddings at once",
    body=EmbedHybridBody,
    example={"inputs": "The ferry leaves at seven."},
    answers=(list[HybridItem],),
)
