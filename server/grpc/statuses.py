"""Errors as gRPC's statuses: the codes of text-embeddings-inference where it has the error, else the usual ones.

https://github.com/huggingface/text-embeddings-inference, router/src/grpc/server.rs
"""

from dataclasses import dataclass

from grpc import StatusCode
from grpc.aio import ServicerContext

from server.dialects.tei.shared import tei_message
from server.requests import errors
from server.requests.errors import RequestError

# fmt: off
CODES: dict[type[RequestError], StatusCode] = {
    errors.InvalidRequest:   StatusCode.INVALID_ARGUMENT,
    errors.EmptyInput:       StatusCode.INVALID_ARGUMENT,
    errors.MalformedBody:    StatusCode.INVALID_ARGUMENT,
    errors.NotTokenizable:   StatusCode.FAILED_PRECONDITION,
    errors.UnsupportedTask:  StatusCode.FAILED_PRECONDITION,
    errors.Unauthorized:     StatusCode.UNAUTHENTICATED,
    errors.ModelNotFound:    StatusCode.NOT_FOUND,
    errors.BodyTooSlow:      StatusCode.DEADLINE_EXCEEDED,
    errors.PayloadTooLarge:  StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded:       StatusCode.RESOURCE_EXHAUSTED,
    errors.EngineFailed:     StatusCode.FAILED_PRECONDITION,
    errors.NotReady:         StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
}
# fmt: on
_PUSHBACK = "grpc-retry-pushback-ms"  # what clients that retry by themselves wait


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status of an RPC that failed."""

    code: StatusCode
    message: str
    trailers: tuple[tuple[str, str], ...]

    async def send(self, context: ServicerContext) -> None:
        """End the RPC. Raises what gRPC's library wants to be raised then."""
        await context.abort(self.code, self.message, self.trailers)


def refusal(error: RequestError, request_id: str) -> Refusal:
    """The status for an error."""
    trailers = [("x-request-id", request_id)]
    if error.retry_after is not None:
        trailers.append((_PUSHBACK, str(max(1, round(1000 * error.retry_after)))))
    return Refusal(CODES[type(error)], tei_message(error), tuple(trailers))
