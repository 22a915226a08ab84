"""The methods of tei.v1.Embed: rows of texts, sparse rows, and rows of tokens."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from server.dialects.reading.inputs import Inputs
from server.dialects.reading.prompts import PromptFields, read_adapter, read_is_query, read_prompt
from server.dialects.reading.row_numbers import read_dimensions
from server.dialects.route import Call
from server.dialects.tei.embed import for_tokens
from server.dialects.tei.sparse import for_sparse
from server.dialects.tei_grpc import tei_pb2
from server.dialects.tei_grpc.method import Method, head, metadata, packed, read_text, read_truncation, written
from server.dialects.writing.forms import RAW_FLOATS
from server.requests.late_interaction import embed_tokens
from server.requests.pipeline import Pipeline
from server.requests.time_slices import steps
from server.requests.work import Embedded, EmbedRequest

_Texts = tei_pb2.EmbedRequest | tei_pb2.EmbedSparseRequest | tei_pb2.EmbedAllRequest
_NUMBERS_AN_ENTRY = 16  # what writing a sparse entry costs, counted in plain numbers
_ROW = tei_pb2.EmbedAllResponse.TOKEN_EMBEDDINGS_FIELD_NUMBER
_FLOATS = tei_pb2.TokenEmbedding.EMBEDDINGS_FIELD_NUMBER


def decode_embed(call: Call, message: tei_pb2.EmbedRequest) -> EmbedRequest:
    """As all decoders here raises RequestError, naming the field."""
    request = _read_request(call, message)
    dimensions = message.dimensions if message.HasField("dimensions") else None
    return replace(
        request,
        dimensions=read_dimensions(dimensions, request.model.dimensions),
        normalize=message.normalize if message.HasField("normalize") else True,
    )


def decode_sparse(call: Call, message: tei_pb2.EmbedSparseRequest) -> EmbedRequest:
    """EmbedSparse."""
    request = _read_request(call, message)
    return for_sparse(request, is_query=_is_query(call, request))


def decode_all(call: Call, message: tei_pb2.EmbedAllRequest) -> EmbedRequest:
    """EmbedAll."""
    request = _read_request(call, message)
    return for_tokens(request, is_query=lambda: _is_query(call, request))


def _read_request(call: Call, message: _Texts) -> EmbedRequest:
    model = call.models.choose(None, with_prompt=True)
    given = Inputs(texts=[read_text(message.inputs, "inputs")], is_single=True)
    fields = PromptFields(prompt_name=message.prompt_name if message.HasField("prompt_name") else None)
    call.form = RAW_FLOATS
    return EmbedRequest(
        model=model,
        texts=given.texts,
        prompt=read_prompt(fields, given, model, name=call.models.asked_name(None)),
        adapter=read_adapter(fields, model, name=call.models.asked_name(None)),
        truncation=read_truncation(message),
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        field="inputs",
        is_single=True,
    )


def _is_query(call: Call, request: EmbedRequest) -> bool:
    return read_is_query(PromptFields(), request.model, name=call.models.asked_name(None))


async def encode_embed(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    """The text's row."""
    rest = tei_pb2.EmbedResponse(metadata=metadata(call.trace))
    return packed(tei_pb2.EmbedResponse.EMBEDDINGS_FIELD_NUMBER, embedded.rows[0]) + written(rest)


async def encode_sparse(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    """Entries and their weights. Long work is done in slices, so that other requests run in between."""
    parts = []
    async for part in steps(len(embedded.rows), _NUMBERS_AN_ENTRY):
        indices, weights = embedded.rows[part, 0].astype(np.int64).tolist(), embedded.rows[part, 1].tolist()
        entries = [
            tei_pb2.SparseValue(index=index, value=weight) for index, weight in zip(indices, weights, strict=True)
        ]
        parts.append(written(tei_pb2.EmbedSparseResponse(sparse_embeddings=entries)))
    parts.append(written(tei_pb2.EmbedSparseResponse(metadata=metadata(call.trace))))
    return b"".join(parts)


async def encode_all(call: Call, request: EmbedRequest, embedded: Embedded) -> bytes:
    """The rows of the text's tokens, in slices too."""
    parts = []
    async for part in steps(*embedded.rows.shape):
        parts.append(_token_rows(embedded.rows[part]))
    parts.append(written(tei_pb2.EmbedAllResponse(metadata=metadata(call.trace))))
    return b"".join(parts)


def _token_rows(rows: NDArray[np.float32]) -> bytes:
    """Each row as a message; all have the same length, and so the same bytes before their numbers."""
    num_bytes = 4 * rows.shape[1]
    inner = head(_FLOATS, num_bytes)
    before = head(_ROW, len(inner) + num_bytes) + inner
    written = np.empty((len(rows), len(before) + num_bytes), np.uint8)
    written[:, : len(before)] = np.frombuffer(before, np.uint8)
    written[:, len(before) :] = np.ascontiguousarray(rows, "<f4").view(np.uint8)
    return written.tobytes()


METHODS = (
    Method(
        service="Embed",
        name="Embed",
        message=tei_pb2.EmbedRequest,
        decode=decode_embed,
        run=Pipeline.embed,
        encode=encode_embed,
    ),
    Method(
        service="Embed",
        name="EmbedSparse",
        message=tei_pb2.EmbedSparseRequest,
        decode=decode_sparse,
        run=Pipeline.embed,
        encode=encode_sparse,
    ),
    Method(
        service="Embed",
        name="EmbedAll",
        message=tei_pb2.EmbedAllRequest,
        decode=decode_all,
        run=embed_tokens,
        encode=encode_all,
        has_token_rows=True,
    ),
)
