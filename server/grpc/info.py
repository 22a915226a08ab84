"""tei.v1.Info: what GET /info says, as far as TEI's message has it."""

from typing import Any

from server.dialects.route import Call
from server.dialects.tei_grpc import tei_pb2
from server.dialects.tei_grpc.method import Method, written
from server.http.info import info as describe
from server.requests.models import ServerState
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace

_TYPES = {
    "embedding": tei_pb2.MODEL_TYPE_EMBEDDING,
    "classifier": tei_pb2.MODEL_TYPE_CLASSIFIER,
    "reranker": tei_pb2.MODEL_TYPE_RERANKER,
}


def info_method(state: ServerState) -> Method:
    """Of the first model, if there are several."""

    async def run(pipeline: Pipeline, request: None, trace: Trace) -> dict[str, Any]:
        return describe(state)

    return Method(
        service="Info",
        name="Info",
        message=tei_pb2.InfoRequest,
        decode=lambda call, message: None,
        run=run,
        encode=_encode,
    )


async def _encode(call: Call, request: None, known: dict[str, Any]) -> bytes:
    (kind,) = known["model_type"]
    named = {
        field.name: known[field.name]
        for field in tei_pb2.InfoResponse.DESCRIPTOR.fields
        if field.name != "model_type" and known.get(field.name) is not None
    }
    return written(tei_pb2.InfoResponse(model_type=_TYPES[kind], **named))
