"""The methods of tei.v1.Rerank: texts ranked for a query, or pairs of both as they come in a stream."""

from collections.abc import Sequence
from dataclasses import dataclass

from server.dialects.reading.inputs import check_num_items
from server.dialects.route import Call
from server.dialects.tei_grpc import tei_pb2
from server.dialects.tei_grpc.method import Method, Reads, metadata, read_truncation, written
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.rerank import Ranked, RerankRequest, rank
from server.requests.time_slices import steps

_NUMBERS_A_RANK = 16  # what writing one costs, counted in plain numbers
_SHARED = ("truncate", "truncation_direction")  # what the messages of a stream may not differ in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(RerankRequest):
    """What is to be ranked, and whether the answer repeats it."""

    has_texts: bool


def decode(call: Call, message: tei_pb2.RerankRequest) -> _Request:
    """As all decoders here raises RequestError, naming the field."""
    if not message.texts:
        raise EmptyInput("texts must not be empty", param="texts")
    check_num_items(len(message.texts), "texts", max_items=call.max_items)
    if not message.query and "" in message.texts:
        raise EmptyInput("query must not be an empty string", param="query")
    return _request(call, message, [message.query], list(message.texts))


def decode_stream(call: Call, messages: Sequence[tei_pb2.RerankStreamRequest]) -> _Request:
    """A query and a text in each message."""
    first = messages[0]
    for index, message in enumerate(messages):
        for field in _SHARED:
            if getattr(message, field) != getattr(first, field):
                raise InvalidRequest(f"{field} must be the same in all messages of a stream", param=field)
        if not message.query and not message.text:
            raise EmptyInput(f"query and text of message {index} must not both be empty", param="query")
    queries = [message.query for message in messages]
    if len(set(queries)) == 1:
        queries = queries[:1]
    return _request(call, first, queries, [message.text for message in messages])


def _request(
    call: Call,
    message: tei_pb2.RerankRequest | tei_pb2.RerankStreamRequest,
    queries: Sequence[str],
    texts: Sequence[str],
) -> _Request:
    return _Request(
        model=call.models.choose(None),
        queries=queries,
        documents=texts,
        raw_scores=message.raw_scores,
        is_bounded=True,
        truncation=read_truncation(message),
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        documents_field="texts",
        has_texts=message.return_text,
    )


async def encode(call: Call, request: _Request, ranked: Ranked) -> bytes:
    """The highest score first. Long work is done in slices, so that other requests run in between."""
    order, scores, parts = ranked.best_first().tolist(), ranked.scores.tolist(), []
    async for part in steps(len(order), _NUMBERS_A_RANK):
        ranks = [
            tei_pb2.Rank(index=at, score=scores[at], text=request.documents[at] if request.has_texts else None)
            for at in order[part]
        ]
        parts.append(written(tei_pb2.RerankResponse(ranks=ranks)))
    parts.append(written(tei_pb2.RerankResponse(metadata=metadata(call.trace))))
    return b"".join(parts)


RERANK = Method(
    service="Rerank",
    name="Rerank",
    message=tei_pb2.RerankRequest,
    decode=decode,
    run=rank,
    encode=encode,
)
RERANK_STREAM = Method(
    service="Rerank",
    name="RerankStream",
    message=tei_pb2.RerankStreamRequest,
    reads=Reads.ALL,
    decode=decode_stream,
    run=rank,
    encode=encode,
)
