"""/embed_hybrid: dense, sparse and late-interaction embeddings of each text from one forward, as bge-m3 gives them.

Ours, in the manner of text-embeddings-inference's routes.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from engine.types import OutputKind
from server.dialects.reading.json_body import parse, parse_body
from server.dialects.tei.answers import timing_headers, token_rows_by_item
from server.dialects.tei.bodies import InputsBody, read_is_query, read_request
from server.dialects.tei.sparse import SCHEMA as SPARSE
from server.dialects.tei.sparse import sparse_by_item
from server.dialects.writing.predictions import in_json
from server.dialects.writing.rows import Encoding, as_list, headers
from server.dialects.writing.time_slices import Turns
from server.http.headers import Wishes
from server.http.route import Answer, Call, Route
from server.requests.errors import InvalidRequest, tei_answer
from server.requests.late_interaction import rows_that_count
from server.requests.models import ModelTable, ServedModel
from server.requests.pipeline import Computed, Embedded, EmbedRequest, finish

KINDS = {
    "dense": OutputKind.POOLED,
    "sparse": OutputKind.SPARSE,
    "multi_vector": OutputKind.MULTI_VECTOR,
}
_ALL = OutputKind.POOLED | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
_OUTPUTS = {
    "type": "array",
    "items": {"enum": list(KINDS)},
    "description": "what each answer is to have; by default all that the model gives",
}
_NOT_SAID = b"null"
_MAX_OUTPUTS_BYTES = 200  # of JSON; so short a list is decoded in no time
_FLOATS_A_TURN = 16_384


class EmbedHybridBody(InputsBody, kw_only=True):
    """The body of POST /embed_hybrid."""

    outputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_OUTPUTS)] = msgspec.field(
        default_factory=lambda: msgspec.Raw(_NOT_SAID)
    )
    normalize: bool | None = None  # of the dense rows; None = true
    input_type: str | None = None  # query or document (None too)


_BODY = msgspec.json.Decoder(EmbedHybridBody)
_NAMES = msgspec.json.Decoder(list[str])


@dataclass(frozen=True, slots=True)
class _Column:
    """One kind of output, for all items."""

    name: str
    embedded: Embedded


async def embed_hybrid(call: Call) -> Answer:
    """POST /embed_hybrid."""
    body = await call.body()
    with call.held(body):
        request = decode(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body  # what is in it was copied out
        call.trace.encoding = Encoding.FLOAT.value
        computed = await call.resources.pipeline.compute(request, call.trace)
    columns = [await _column(name, kind, computed, request) for name, kind in KINDS.items() if kind & request.outputs]
    own = [*headers(columns[0].embedded, Encoding.FLOAT), *timing_headers(call.trace)]
    return 200, own, await encode(columns, request.num_items)


def decode(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> EmbedRequest:
    """Raises RequestError, naming the field or index."""
    fields = parse_body(_BODY, body)
    request = read_request(fields, wishes, models, max_items=max_items)
    return replace(
        request,
        outputs=_read_outputs(fields.outputs, request.model),
        normalize=fields.normalize is not False,
        num_queries=request.num_items if read_is_query(fields.input_type) else 0,
        query_prompt=request.prompt,
    )


def _read_outputs(wished: msgspec.Raw, model: ServedModel) -> OutputKind:
    """What the model can't give is refused when it is to be computed."""
    raw = bytes(wished)
    if raw == _NOT_SAID:
        return (model.outputs & _ALL) or _ALL
    names = parse(_NAMES, raw, "outputs") if len(raw) <= _MAX_OUTPUTS_BYTES else []
    if not names or not KINDS.keys() >= set(names):
        raise InvalidRequest(f"outputs must be a list of one or more of {', '.join(KINDS)}", param="outputs")
    outputs = OutputKind(0)
    for name in names:
        outputs |= KINDS[name]
    return outputs


async def _column(name: str, kind: OutputKind, computed: Computed, request: EmbedRequest) -> _Column:
    if kind is OutputKind.MULTI_VECTOR:
        return _Column(name, await rows_that_count(computed, request))
    rows = computed.results[kind]
    values = finish(rows.values, request) if kind is OutputKind.POOLED else rows.values
    return _Column(name, Embedded(values, computed.num_tokens, computed.tokens.truncated, rows.offsets))


async def encode(columns: list[_Column], num_items: int) -> bytes:
    """The body of the answer. Long work is done in slices, so that other requests get their turn."""
    writers = [(column.name.encode(), _by_item(column)) for column in columns]
    items = []
    for _ in range(num_items):
        fields = [b'"%b":%b' % (name, await anext(writer)) for name, writer in writers]
        items.append(b"{%b}" % b",".join(fields))
    return as_list(items)


def _by_item(column: _Column) -> AsyncIterator[bytes]:
    match column.name:
        case "dense":
            return _rows(column.embedded)
        case "sparse":
            return sparse_by_item(column.embedded)
        case _:
            return token_rows_by_item(column.embedded)


async def _rows(embedded: Embedded) -> AsyncIterator[bytes]:
    turns = Turns(_FLOATS_A_TURN)
    for row in embedded.rows:
        yield in_json(row)
        await turns.wrote(len(row))


_ROW: dict[str, Any] = {"type": "array", "items": {"type": "number"}}
_ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {"dense": _ROW, "sparse": SPARSE, "multi_vector": {"type": "array", "items": _ROW}},
}

ROUTES = (
    Route(
        path="/embed_hybrid",
        handler=embed_hybrid,
        error_shape=tei_answer,
        summary="Dense, sparse and late-interaction embeddings from one forward",
        body=EmbedHybridBody,
        responses={"application/json": {"type": "array", "items": _ITEM}},
    ),
)
