"""Every gRPC method that computes."""

from dataclasses import replace

from server.dialects.tei_grpc import embed, predict, tokens
from server.dialects.tei_grpc.method import Method, Reads
from server.dialects.tei_grpc.rerank import RERANK, RERANK_STREAM

_ALSO_AS_STREAMS = (*embed.METHODS, *predict.METHODS, *tokens.METHODS)


def _as_stream(method: Method) -> Method:
    return replace(method, name=f"{method.name}Stream", reads=Reads.EACH)


METHODS = (*_ALSO_AS_STREAMS, *map(_as_stream, _ALSO_AS_STREAMS), RERANK, RERANK_STREAM)
