"""text-embeddings-inference's /embed_sparse: weights of vocabulary entries, of models that give them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from engine.types import OutputKind
from server.dialects.reading.json_body import parse_body
from server.dialects.tei.answers import timing_headers
from server.dialects.tei.bodies import InputsBody, read_is_query, read_request
from server.dialects.writing.predictions import in_json
from server.dialects.writing.ragged import sparse_bytes, sparse_headers
from server.dialects.writing.rows import Encoding, as_list, headers
from server.dialects.writing.time_slices import Turns
from server.http.headers import Wishes
from server.http.route import Answer, Call, Route
from server.requests.errors import tei_answer
from server.requests.models import ModelTable
from server.requests.pipeline import Embedded, EmbedRequest

_ENTRIES_A_TURN = 2000

SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "object", "properties": {"index": {"type": "integer"}, "value": {"type": "number"}}},
}


class EmbedSparseBody(InputsBody, kw_only=True):
    """The body of POST /embed_sparse."""

    input_type: str | None = None  # ours: query or document (None too); they may differ, see docs/models.md


_BODY = msgspec.json.Decoder(EmbedSparseBody)


async def embed_sparse(call: Call) -> Answer:
    """POST /embed_sparse."""
    body = await call.body()
    with call.held(body):
        request = decode(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body  # what is in it was copied out
        encoding = Encoding.BYTES if call.wishes.raw_bytes else Encoding.FLOAT
        call.trace.encoding = encoding.value
        embedded = await call.resources.pipeline.embed(request, call.trace)
    if encoding is Encoding.BYTES:
        return 200, [*sparse_headers(embedded), *timing_headers(call.trace)], sparse_bytes(embedded)
    items = [item async for item in sparse_by_item(embedded)]
    return 200, [*headers(embedded, encoding), *timing_headers(call.trace)], as_list(items)


def decode(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> EmbedRequest:
    """Raises RequestError, naming the field or index."""
    fields = parse_body(_BODY, body)
    request = read_request(fields, wishes, models, max_items=max_items)
    return replace(
        request,
        outputs=OutputKind.SPARSE,
        normalize=False,
        num_queries=request.num_items if read_is_query(fields.input_type) else 0,
        query_prompt=request.prompt,
    )


async def sparse_by_item(embedded: Embedded) -> AsyncIterator[bytes]:
    """The entries of one item after the other, each a list in JSON. Other requests get their turn meanwhile."""
    assert embedded.offsets is not None
    turns = Turns(_ENTRIES_A_TURN)
    for first, end in pairwise(embedded.offsets.tolist()):
        entries: list[bytes] = []
        for start in range(first, end, _ENTRIES_A_TURN):
            rows = embedded.rows[start : min(start + _ENTRIES_A_TURN, end)]
            weights = in_json(rows[:, 1])[1:-1].split(b",")
            indices = rows[:, 0].astype(np.int64).tolist()
            entries += [
                b'{"index":%d,"value":%b}' % (index, weight) for index, weight in zip(indices, weights, strict=True)
            ]
            await turns.wrote(len(rows))
        yield as_list(entries)
        await turns.wrote(1)


ROUTES = (
    Route(
        path="/embed_sparse",
        handler=embed_sparse,
        error_shape=tei_answer,
        summary="Sparse embeddings, as TEI has them",
        body=EmbedSparseBody,
        responses={
            "application/json": {"type": "array", "items": SCHEMA},
            "application/octet-stream": {
                "type": "string",
                "format": "binary",
                "description": "uint32 offsets [items + 1], then uint32 indices, then as many float32 values",
            },
        },
    ),
)
