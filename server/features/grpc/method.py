"""The parts of a gRPC method, and the functions that methods share: reading texts and directions, writing floats and
metadata.

Knows no server and no status codes.
"""

import enum
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from server.dialects.route import Call
from server.features.grpc import tei_pb2
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody
from server.requests.pipeline import Pipeline
from server.requests.work import Trace
from tokenizer_pool.messages import Truncation

_DIRECTIONS = {
    tei_pb2.TRUNCATION_DIRECTION_RIGHT: Truncation.RIGHT,
    tei_pb2.TRUNCATION_DIRECTION_LEFT: Truncation.LEFT,
}
_NANOSECONDS = 1_000_000_000
_LENGTH_DELIMITED = 2  # protobuf's wire type of texts, messages and packed numbers
_FOUR_BYTES = 5  # the last of the wire types
_VARINT_BYTES = 10  # at most
_SMALL_BYTES = 64 * 1024  # a message of so few can't have too many fields
_OTHER_FIELDS = 64  # beside texts; a client may know more of them than we do
_SEVEN_BITS = 0x7F
_MORE = 0x80


class Reads(enum.Enum):
    """The client's messages that an answer is made of."""

    ONE = "one"  # there is only one
    EACH = "each"  # there are many, and each has an answer, in their order
    ALL = "all"  # there are many, and one answer


@dataclass(frozen=True, slots=True)
class Method:
    """One method. All functions may raise RequestError, which names the field."""

    name: str  # with its service, which is named without the package
    message: type[Any]  # a class of tei_pb2
    decode: Callable[[Call, Any], Any]  # a message, or a list of them, to a request of server/requests
    run: Callable[[Pipeline, Any, Trace], Awaitable[Any]]  # a request to its result
    encode: Callable[[Call, Any, Any], Coroutine[Any, Any, bytes]]  # a request and its result to the answer's message
    reads: Reads = Reads.ONE
    has_token_rows: bool = False  # whether an answer has a row for each token, and so may be large

    @property
    def path(self) -> str:
        """The path of the method in HTTP/2."""
        return f"/tei.v1.{self.name}"

    def parsed(self, data: bytes, max_items: int) -> Any:
        """A message. Raises MalformedBody, and InvalidRequest for far more than `max_items` texts."""
        if len(data) > _SMALL_BYTES and _has_lists_of_texts(self.message):
            _check_num_fields(data, max_items)
        try:
            return self.message.FromString(data)
        except DecodeError:
            name = self.message.DESCRIPTOR.full_name
            raise MalformedBody(f"the message is not of the type {name}, or a text in it is not UTF-8") from None


def _has_lists_of_texts(message: type[Any]) -> bool:
    fields: Any = message.DESCRIPTOR.fields
    return any(field.is_repeated and field.type == field.TYPE_STRING for field in fields)


def _check_num_fields(data: bytes, max_items: int) -> None:
    """Raises InvalidRequest. Two bytes are an empty text, for which the parser takes thirty. It may be no message."""
    at, wire_type = 0, 0
    for _ in range(max_items + _OTHER_FIELDS):
        if at >= len(data) or wire_type > _FOUR_BYTES:
            return  # what ends here, or is wrong, is the parser's
        tag, at = _read_varint(data, at)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            length, at = _read_varint(data, at)
            at += length
        elif wire_type == 0:
            at = _read_varint(data, at)[1]
        else:
            at += {1: 8, _FOUR_BYTES: 4}.get(wire_type, 0)
    raise InvalidRequest(
        f"the message has far more fields than the maximum allowed batch size of {max_items} (--max-client-batch-size)"
    )


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next field begins."""
    number = shift = 0
    for byte in data[at : at + _VARINT_BYTES]:
        number |= (byte & _SEVEN_BITS) << shift
        at, shift = at + 1, shift + 7
        if not byte & _MORE:
            break
    return number, at


def read_text(text: str, field: str) -> str:
    """Raises EmptyInput."""
    if not text:
        raise EmptyInput(f"{field} must not be an empty string", param=field)
    return text


def read_truncation(message: Any) -> Truncation:
    """The end that is cut off, if any; for any message with these two fields. Raises InvalidRequest."""
    direction = _DIRECTIONS.get(message.truncation_direction)
    if direction is None:
        raise InvalidRequest("truncation_direction must be 0 (right) or 1 (left)", param="truncation_direction")
    return direction if message.truncate else Truncation.NONE


def metadata(trace: Trace) -> tei_pb2.Metadata:
    """The metadata of its request in every answer."""
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
    """The bytes before the content of a field that is packed numbers or a message."""
    return _varint(field << 3 | _LENGTH_DELIMITED) + _varint(num_bytes)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > _SEVEN_BITS:
        parts.append(number & _SEVEN_BITS | _MORE)
        number >>= 7
    parts.append(number)
    return bytes(parts)
