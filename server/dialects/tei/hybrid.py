"""/embed_hybrid: dense, sparse and late-interaction embeddings of each text from one forward, as bge-m3 gives them.

Ours, in the style of text-embeddings-inference's routes.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated

import msgspec

from engine.types import OutputKind
from server.dialects.reading.json_body import parse
from server.dialects.reading.known_fields import BodyReader
from server.dialects.reading.prompts import read_is_query
from server.dialects.route import Answer, Call, Route
from server.dialects.tei.embed import token_rows_by_item
from server.dialects.tei.shared import InputsBody, read_request, tei_error, timing_headers
from server.dialects.tei.sparse import SparseEntry, sparse_by_item
from server.dialects.writing.forms import FLOATS, numbers_as_json
from server.dialects.writing.rows import as_list_of, headers
from server.requests.errors import InvalidRequest
from server.requests.late_interaction import rows_that_count
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.rows import finish
from server.requests.time_slices import TimeSlice
from server.requests.work import Computed, Embedded, EmbedRequest

KINDS = {
    "dense": OutputKind.POOLED,
    "sparse": OutputKind.SPARSE,
    "multi_vector": OutputKind.MULTI_VECTOR,
}
_ALL = OutputKind.POOLED | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
_MAX_OUTPUTS = 8  # a name may be there twice
_OUTPUTS = {
    "type": "array",
    "items": {"enum": list(KINDS)},
    "minItems": 1,
    "maxItems": _MAX_OUTPUTS,
    "description": "what each item of the answer has; by default all that the model gives",
}
_NOT_GIVEN = b"null"
_MAX_OUTPUTS_BYTES = 200  # of JSON; a list this short is decoded at once


class EmbedHybridBody(InputsBody, kw_only=True):
    """The body of POST /embed_hybrid."""

    outputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_OUTPUTS)] = msgspec.field(
        default_factory=lambda: msgspec.Raw(_NOT_GIVEN)
    )
    normalize: bool | None = None  # of the dense rows; None = true


class HybridItem(msgspec.Struct):
    """All that was asked for of one text."""

    dense: list[float] | msgspec.UnsetType = msgspec.UNSET
    sparse: list[SparseEntry] | msgspec.UnsetType = msgspec.UNSET
    multi_vector: list[list[float]] | msgspec.UnsetType = msgspec.UNSET


_BODY = BodyReader(EmbedHybridBody)
_NAMES = msgspec.json.Decoder(list[str])


def decode(call: Call, body: bytes) -> EmbedRequest:
    """Raises RequestError, naming the field or index."""
    fields = _BODY.read(body)
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
    if raw == _NOT_GIVEN:
        return (model.outputs & _ALL) or _ALL
    names = parse(_NAMES, raw, "outputs") if len(raw) <= _MAX_OUTPUTS_BYTES else []
    if not 0 < len(names) <= _MAX_OUTPUTS or not KINDS.keys() >= set(names):
        raise InvalidRequest(f"outputs must be a list of one or more of {', '.join(KINDS)}", param="outputs")
    outputs = OutputKind(0)
    for name in names:
        outputs |= KINDS[name]
    return outputs


async def encode(call: Call, request: EmbedRequest, computed: Computed) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    by_kind = {name: await _rows(kind, computed, request) for name, kind in KINDS.items() if kind & request.outputs}
    own = [*headers(next(iter(by_kind.values()))), *timing_headers(call.trace)]
    return Answer(200, own, await as_list_of(_items(by_kind, request.num_items)))


async def _items(by_kind: dict[str, Embedded], num_items: int) -> AsyncIterator[bytes]:
    writers = [(name.encode(), _by_item(name, embedded)) for name, embedded in by_kind.items()]
    for _ in range(num_items):
        values: list[bytes | bytearray] = [await anext(writer) for _, writer in writers]
        yield b"{%b}" % b",".join(b'"%b":' % name + value for (name, _), value in zip(writers, values, strict=True))


async def _rows(kind: OutputKind, computed: Computed, request: EmbedRequest) -> Embedded:
    if kind is OutputKind.MULTI_VECTOR:
        return await rows_that_count(computed, request)
    rows = computed.results[kind]
    values = finish(rows.values, request) if kind is OutputKind.POOLED else rows.values
    return Embedded(values, computed.num_tokens, computed.tokens.truncated, rows.offsets)


def _by_item(name: str, embedded: Embedded) -> AsyncIterator[bytes | bytearray]:
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


ROUTES = (
    Route(
        path="/embed_hybrid",
        decode=decode,
        run=Pipeline.compute,
        encode=encode,
        error_shape=tei_error,
        summary="Make dense, sparse and late-interaction embeddings at once",
        body=EmbedHybridBody,
        example={"inputs": "The ferry leaves at seven."},
        answers=(list[HybridItem],),
    ),
)
