"""What a gRPC method is made of, and what the methods share: reading texts and directions, writing floats and metadata.

Knows no server and no status codes.
"""

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from server.dialects.route import Call
from server.dialects.tei_grpc import tei_pb2
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace
from tokenizer_pool.messages import Truncation

_DIRECTIONS = {
    tei_pb2.TRUNCATION_DIRECTION_RIGHT: Truncation.RIGHT,
    tei_pb2.TRUNCATION_DIRECTION_LEFT: Truncation.LEFT,
}
_NANOSECONDS = 1_000_000_000
_LENGTH_DELIMITED = 2  # protobuf's wire type of texts, messages and packed numbers
_SEVEN_BITS = 0x7F
_MORE = 0x80


class Reads(enum.Enum):
    """Which of the client's messages an answer is made of."""

    ONE = "one"  # there is only one
    EACH = "each"  # there are many, and each has an answer, in their order
    ALL = "all"  # there are many, and one answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method. All functions may raise RequestError."""

    service: str  # without the package
    name: str
    message: type[Any]  # a class of tei_pb2
    reads: Reads = Reads.ONE
    decode: Callable[[Call, Any], Any]  # a message, or a list of them, to a request of server/requests
    run: Callable[[Pipeline, Any, Trace], Awaitable[Any]]  # a request to its result
    encode: Callable[[Call, Any, Any], Awaitable[bytes]]  # a request and its result to the answer's message
    has_token_rows: bool = False  # whether an answer has a row for each token, and so may be large

    @property
    def path(self) -> str:
        """As HTTP/2 has it."""
        return f"/tei.v1.{self.service}/{self.name}"

    def parsed(self, data: bytes) -> Any:
        """A message. Raises MalformedBody."""
        try:
            return self.message.FromString(data)
        except DecodeError:
            raise MalformedBody(f"the message is not of the type {self.message.DESCRIPTOR.full_name}") from None


def read_text(text: str, field: str) -> str:
    """Raises EmptyInput."""
    if not text:
        raise EmptyInput(f"{field} must not be an empty string", param=field)
    return text


def read_truncation(message: Any) -> Truncation:
    """Which end is cut off, if any; of any message with these two fields. Raises InvalidRequest."""
    direction = _DIRECTIONS.get(message.truncation_direction)
    if direction is None:
        raise InvalidRequest("truncation_direction must be 0 (right) or 1 (left)", param="truncation_direction")
    return direction if message.truncate else Truncation.NONE


def metadata(trace: Trace) -> tei_pb2.Metadata:
    """What every answer says of its request."""
    return tei_pb2.Metadata(
        compute_chars=trace.num_characters,
        compute_tokens=trace.num_tokens,
        total_time_ns=int(trace.elapsed() * _NANOSECONDS),
        tokenization_time_ns=int(trace.tokenize_seconds * _NANOSECONDS),
        queue_time_ns=int(trace.queue_seconds * _NANOSECONDS),
        inference_time_ns=int(trace.compute_seconds * _NANOSECONDS),
    )


def written(message: Any) -> bytes:
    """A message of tei_pb2 as it goes over the wire."""
    content: bytes = message.SerializeToString()
    return content


# Floats are written here, since protobuf's Python library takes them one by one. Pieces of a message may be joined:
# readers merge them.


def packed(field: int, row: NDArray[np.float32]) -> bytes:
    """A `repeated float` field."""
    values = row.astype("<f4").tobytes()
    return head(field, len(values)) + values


def head(field: int, num_bytes: int) -> bytes:
    """What stands before the content of a field that is packed numbers or a message."""
    return _varint(field << 3 | _LENGTH_DELIMITED) + _varint(num_bytes)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > _SEVEN_BITS:
        parts.append(number & _SEVEN_BITS | _MORE)
        number >>= 7
    parts.append(number)
    return bytes(parts)
