"""text-embeddings-inference's /embed_sparse: weights of vocabulary entries, from models that give them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from engine.types import OutputKind
from server.dialects.reading.known_fields import BodyReader
from server.dialects.reading.prompts import read_is_query
from server.dialects.route import Answer, Call, Route
from server.dialects.tei.shared import InputsBody, read_request, tei_error, timing_headers
from server.dialects.writing.forms import RAGGED_ONLY, numbers_as_json
from server.dialects.writing.ragged import sparse_bytes, sparse_headers
from server.dialects.writing.rows import as_list, as_list_of, headers
from server.requests.pipeline import Pipeline
from server.requests.time_slices import TimeSlice, steps
from server.requests.work import Embedded, EmbedRequest

_NUMBERS_AN_ENTRY = 8  # what writing an entry costs, counted in plain numbers


class SparseEntry(msgspec.Struct):
    """One vocabulary entry with its weight."""

    index: int
    value: float


_BODY = BodyReader(InputsBody)


def decode(call: Call, body: bytes) -> EmbedRequest:
    """Raises RequestError, naming the field or index."""
    fields = _BODY.read(body)
    request = read_request(call, fields)
    call.set_form(offers=RAGGED_ONLY)
    name = call.models.asked_name(fields.model)
    return for_sparse(request, is_query=read_is_query(fields, request.model, name=name))


def for_sparse(request: EmbedRequest, *, is_query: bool) -> EmbedRequest:
    """The same texts for sparse rows."""
    return replace(
        request,
        outputs=OutputKind.SPARSE,
        normalize=False,
        num_queries=request.num_items if is_query else 0,
        query_prompt=request.prompt,
    )


async def encode(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    timing = timing_headers(call.trace)
    if call.form and call.form.has_rows_alone:
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


ROUTES = (
    Route(
        path="/embed_sparse",
        decode=decode,
        run=Pipeline.embed,
        encode=encode,
        error_shape=tei_error,
        summary="Make sparse embeddings with TEI's API",
        body=InputsBody,
        example={"inputs": "The ferry leaves at seven."},
        answers=(list[list[SparseEntry]],),
        raw_answer="uint32 offsets [items + 1], then uint32 indices, then as many float32 values",
    ),
)
