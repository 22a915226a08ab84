"""POST /embed_sparse, text-embeddings-inference's route for weights of vocabulary entries, and /embed_hybrid, which is
ours in its style: dense, sparse and late-interaction embeddings of each text from one forward, as bge-m3 gives them.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise
from operator import or_
from typing import Annotated

import msgspec
import numpy as np

from engine.types import OutputKind
from server.dialects.answers import Answer
from server.dialects.fields.field import passed_over
from server.dialects.fields.rows import NormalizeField
from server.dialects.fields.texts import SideFields
from server.dialects.reading.json_body import NOT_GIVEN, is_given, parse
from server.dialects.route import Call, Stages
from server.dialects.row_answers import (
    FLOATS,
    RAGGED_ONLY,
    as_list,
    as_list_of,
    headers,
    numbers_as_json,
    rows_or_null,
    sparse_bytes,
    sparse_headers,
)
from server.dialects.tei import InputsFields, asks_queries, read_request, tei_route, timing_headers, token_rows_by_item
from server.requests.errors import InvalidRequest
from server.requests.late_interaction import rows_that_count
from server.requests.limits import in_slices, steps
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.work import Computed, Embedded, EmbedRequest, finish

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
_NUMBERS_AN_ENTRY = 8  # what writing an entry costs, counted in plain numbers


class InputsBody(SideFields, InputsFields, kw_only=True):
    """What the bodies of all routes that embed have in common."""


class EmbedHybridBody(InputsBody, NormalizeField, kw_only=True):
    """The body of POST /embed_hybrid."""

    outputs: Annotated[
        msgspec.Raw, passed_over("the kinds of rows", by="ours", schema=_OUTPUTS, changes_result=True)
    ] = NOT_GIVEN


class SparseEntry(msgspec.Struct):
    """One vocabulary entry with its weight."""

    index: int
    value: float


class HybridItem(msgspec.Struct):
    """All that was asked for of one text."""

    dense: list[float] | msgspec.UnsetType = msgspec.UNSET
    sparse: list[SparseEntry] | msgspec.UnsetType = msgspec.UNSET
    multi_vector: list[list[float]] | msgspec.UnsetType = msgspec.UNSET


_KIND_NAMES = msgspec.json.Decoder(list[str])


def _decode_embed_sparse(call: Call, fields: InputsBody) -> EmbedRequest:
    request = read_request(call, fields)
    call.set_form(offers=RAGGED_ONLY)
    return for_sparse(request, is_query=asks_queries(call, fields, request.model))


def for_sparse(request: EmbedRequest, *, is_query: bool) -> EmbedRequest:
    """This request's texts for sparse rows."""
    return replace(
        request,
        outputs=OutputKind.SPARSE,
        normalize=False,
        num_queries=request.num_items if is_query else 0,
        query_prompt=request.prompt,
    )


def _decode_embed_hybrid(call: Call, fields: EmbedHybridBody) -> EmbedRequest:
    request = read_request(call, fields)
    call.form = FLOATS
    outputs = _read_outputs(fields.outputs, request.model)
    request = for_sparse(request, is_query=asks_queries(call, fields, request.model))
    return replace(request, outputs=outputs, normalize=fields.normalize is not False)


def _read_outputs(wanted: msgspec.Raw, model: ServedModel) -> OutputKind:
    """The pipeline refuses what the model can't give. Raises InvalidRequest."""
    if not is_given(wanted):
        return (model.outputs & _ALL_KINDS) or _ALL_KINDS
    raw = bytes(wanted)
    names = parse(_KIND_NAMES, raw, "outputs") if len(raw) <= _MAX_OUTPUTS_BYTES else []
    if not 0 < len(names) <= _MAX_OUTPUTS or not KINDS.keys() >= set(names):
        raise InvalidRequest(f"outputs must be a list of one or more of {', '.join(KINDS)}", param="outputs")
    return reduce(or_, (KINDS[name] for name in names))


async def _encode_embed_sparse(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    timing = timing_headers(call.trace)
    if call.form.has_rows_alone:
        return Answer(200, [*sparse_headers(embedded), *timing], sparse_bytes(embedded))
    return Answer(200, [*headers(embedded), *timing], await as_list_of(sparse_by_item(embedded)))


async def sparse_by_item(embedded: Embedded) -> AsyncIterator[bytes]:
    """The entries of one item after the other, each a list in JSON."""
    assert embedded.offsets is not None
    async for start, stop in in_slices(pairwise(embedded.offsets.tolist())):
        rows, entries = embedded.rows[start:stop], list[bytes]()
        async for part in steps(len(rows), _NUMBERS_AN_ENTRY):
            weights = numbers_as_json(rows[part, 1])[1:-1].split(b",")
            indices = rows[part, 0].astype(np.int64).tolist()
            entries += [b'{"index":%d,"value":%b}' % entry for entry in zip(indices, weights, strict=True)]
        yield as_list(entries)


async def _encode_embed_hybrid(call: Call, request: EmbedRequest, computed: Computed) -> Answer:
    by_kind = {
        name: await _rows_of_kind(kind, computed, request) for name, kind in KINDS.items() if kind & request.outputs
    }
    own = [*headers(next(iter(by_kind.values()))), *timing_headers(call.trace)]
    return Answer(200, own, await as_list_of(_hybrid_items(by_kind, request.num_items)))


async def _rows_of_kind(kind: OutputKind, computed: Computed, request: EmbedRequest) -> Embedded:
    if kind is OutputKind.MULTI_VECTOR:
        return await rows_that_count(computed, request)
    rows = computed.results[kind]
    values = finish(rows.values, request) if kind is OutputKind.POOLED else rows.values
    return Embedded(values, computed.num_tokens, computed.tokens.truncated, rows.offsets)


_WRITERS: dict[str, Callable[[Embedded], AsyncIterator[bytes | bytearray]]] = {
    "dense": partial(rows_or_null, form=FLOATS),
    "sparse": sparse_by_item,
    "multi_vector": token_rows_by_item,
}


async def _hybrid_items(by_kind: dict[str, Embedded], num_items: int) -> AsyncIterator[bytes]:
    writers = [(name.encode(), _WRITERS[name](embedded)) for name, embedded in by_kind.items()]
    for _ in range(num_items):
        values: list[bytes | bytearray] = [await anext(writer) for _, writer in writers]
        yield b"{%b}" % b",".join(b'"%b":' % name + value for (name, _), value in zip(writers, values, strict=True))


ROUTES = (
    tei_route(
        path="/embed_sparse",
        stages=Stages(_decode_embed_sparse, Pipeline.embed, _encode_embed_sparse),
        summary="Make sparse embeddings with TEI's API",
        body=InputsBody,
        answers=(list[list[SparseEntry]],),
        raw_answer="uint32 offsets [items + 1], then uint32 indices, then as many float32 values",
    ),
    tei_route(
        path="/embed_hybrid",
        stages=Stages(_decode_embed_hybrid, Pipeline.compute, _encode_embed_hybrid),
        summary="Make dense, sparse and late-interaction embeddings at once",
        body=EmbedHybridBody,
        answers=(list[HybridItem],),
    ),
)
