"""What frontends and the jobs process say to each other, and START of that process.

A CALL names what is asked for, has a few fields and some bytes; a REPLY has fields and bytes too. Larger things than a
frame go in several calls, one after the other, so that neither side holds more than a frame of them.
"""

import enum
import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec

from wire.frames import Buffer, ProtocolError

CALL = 0x0600
REPLY = 0x0601
REFUSED = 0x0602
READY = 0x0603  # no payload: the process has accepted the connection, and lives

CHUNK_BYTES = 1 << 20  # the most of a file in one call, in either direction
PIECE_BYTES = 64 * 1024  # of a file or a result that lies near: its client may not read it
MAX_BODY_BYTES = 4 << 20  # of one async request: more belongs into a batch

_HEAD_LENGTH = struct.Struct("<I")

Fields = dict[str, Any]


class Reason(enum.StrEnum):
    """Why a call is refused."""

    FULL = "full"  # there is no room, or not for this key; nothing was kept
    UNAVAILABLE = "unavailable"  # the process is down or too busy; whether something was kept is not known
    CONFLICT = "conflict"  # it contradicts what is there
    NOT_FOUND = "not_found"  # it is not there, or another key's
    INVALID = "invalid"
    FAILED = "failed"  # because of a fault of ours


class Refused(Exception):
    """A call that was not done. The message is for the client."""

    def __init__(
        self, reason: Reason, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.param = param  # the field that is wrong
        self.retry_after = retry_after  # seconds


class Call(msgspec.Struct, frozen=True):
    """The head of a CALL."""

    what: str
    owner: str  # name of the API key; "" where the server has no keys
    fields: Fields = {}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call is answered with."""

    fields: Fields = field(default_factory=dict)
    body: Buffer = b""


class _Refusal(msgspec.Struct, frozen=True):
    reason: Reason
    message: str
    param: str | None = None
    retry_after: float | None = None


_CALLS = msgspec.json.Decoder(Call)
_FIELDS = msgspec.json.Decoder(Fields)
_REFUSALS = msgspec.json.Decoder(_Refusal)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsStart:
    """The START message of the jobs process."""

    listener_fd: int  # where frontends connect
    folder: str  # --jobs
    redis: str | None = field(repr=False)  # --jobs-redis: a URL, maybe with a password
    files: str | None = field(repr=False)  # --jobs-files: a URL, maybe with a password
    waits_for_folder: bool  # until the server that has it ends, as this one takes over from it
    quota: int  # bytes
    result_ttl: float  # seconds that ended requests are kept
    batch_ttl: float  # seconds that what is known of ended batches is kept
    key_share: float  # of the quota, the most that one key may hold
    webhook_secrets: str | None  # the file they are in
    private_webhooks: bool  # whether they may go to private addresses
    http_path: str  # the Unix socket where frontends take this process's requests
    secret: str  # with which they may act for an API key
    max_in_flight: int  # requests that may be sent to frontends at a time


def encode_call(call: Call, body: Buffer = b"") -> list[Buffer]:
    """A CALL's payload."""
    return _with_head(msgspec.json.encode(call), body)


def decode_call(payload: memoryview) -> tuple[Call, memoryview]:
    """The inverse of `encode_call`. Raises ProtocolError."""
    head, body = _head_of(payload)
    try:
        return _CALLS.decode(head), body
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a call: {error}") from None


def encode_reply(reply: Reply) -> list[Buffer]:
    """A REPLY's payload."""
    return _with_head(msgspec.json.encode(reply.fields), reply.body)


def decode_reply(payload: memoryview) -> Reply:
    """The inverse of `encode_reply`."""
    head, body = _head_of(payload)
    return Reply(_FIELDS.decode(head), body)


def encode_refused(refused: Refused) -> list[Buffer]:
    """A REFUSED's payload."""
    return [msgspec.json.encode(_Refusal(refused.reason, refused.message, refused.param, refused.retry_after))]


def decode_refused(payload: memoryview) -> Refused:
    """The inverse of `encode_refused`."""
    one = _REFUSALS.decode(payload)
    return Refused(one.reason, one.message, param=one.param, retry_after=one.retry_after)


def _with_head(head: bytes, body: Buffer) -> list[Buffer]:
    return [_HEAD_LENGTH.pack(len(head)), head, body]


def _head_of(payload: memoryview) -> tuple[memoryview, memoryview]:
    """Raises ProtocolError."""
    if len(payload) < _HEAD_LENGTH.size:
        raise ProtocolError("a frame of the jobs process is too short")
    end = _HEAD_LENGTH.size + _HEAD_LENGTH.unpack_from(payload)[0]
    return payload[_HEAD_LENGTH.size : end], payload[end:]
