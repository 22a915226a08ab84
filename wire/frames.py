"""Frames: how bytes on a socket between two processes are cut into messages.

Knows lengths, kinds and ids; knows nothing of what a payload means. docs/wire-format.md specifies the format.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview  # arrays are sent as their `.data.cast("B")`

VERSION = 1

# payload length in bytes (u32), kind (u16), reserved, always 0 (u16), id (u64); little-endian
HEADER = struct.Struct("<IHHQ")
MAX_PAYLOAD = 1 << 30  # bytes: above any batch or answer that the limits at the edge let through

HELLO = 1  # the first frame in each direction; id is 0
_HELLO_PAYLOAD = struct.Struct("<4sHH")
_MAGIC = b"EMBL"

_RECEIVE_BYTES = 256 * 1024  # one read takes at most this much; a larger payload gets a buffer of its own
_JOINED_BYTES = 16384  # parts of a small payload are copied together, which costs less than to hand on several


class ProtocolError(Exception):
    """The peer sent something that is not our protocol, or not our version of it."""


class PayloadTooLarge(ValueError):
    """This process tried to send more than a frame can carry; the peer is not to blame, and nothing was sent."""


class OnFrame(Protocol):
    """Called with each whole frame. The payload belongs to the callee."""

    def __call__(self, kind: int, frame_id: int, payload: memoryview, /) -> None: ...


def frame(kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> list[Buffer]:
    """One frame as buffers ready for `writelines` or `sendmsg`; large parts are not copied. Raises PayloadTooLarge."""
    length = sum(map(len, parts))
    if length > MAX_PAYLOAD:
        raise PayloadTooLarge(f"a payload of {length} bytes is over the limit of {MAX_PAYLOAD}")
    header = HEADER.pack(length, kind, 0, frame_id)
    if length <= _JOINED_BYTES:
        whole = b"".join((header, *parts))
        assert len(whole) == HEADER.size + length, "a view counts bytes"
        return [whole]
    assert length == sum(memoryview(part).nbytes for part in parts), "a view counts bytes"
    # never an empty one: asyncio's `writelines` would never finish sending it
    return [header, *filter(len, parts)]


def hello() -> list[Buffer]:
    """The frame that opens a connection, in either direction."""
    return frame(HELLO, 0, [_HELLO_PAYLOAD.pack(_MAGIC, VERSION, 0)])


def _check_hello(payload: Buffer) -> None:
    magic, version, _ = _HELLO_PAYLOAD.unpack(payload)
    if magic != _MAGIC:
        raise ProtocolError("the peer's first frame is not a handshake")
    if version != VERSION:
        raise ProtocolError(f"the peer speaks version {version} of the frame format, this process {VERSION}")


class FrameParser:
    """Cuts a byte stream into frames. The caller fills `writable()` and then tells `advance()` how much came.

    Small frames are parsed out of one receive buffer and copied; a payload that does not fit it is
    received straight into a buffer of its own, so that a megabyte of rows is never copied twice.
    The first frame must be the handshake, which is checked here and not passed on.
    """

    def __init__(self, on_frame: OnFrame) -> None:
        self._on_frame: Callable[[int, int, memoryview], None] = on_frame
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._start = 0  # first byte not yet parsed
        self._end = 0  # first byte not yet filled
        self._large: memoryview | None = None
        self._large_filled = 0
        self._large_header = (0, 0)  # kind, id
        self._greeted = False

    def writable(self) -> memoryview:
        """The memory where the next bytes go; never empty."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._buffer[self._end :]

    def advance(self, num_bytes: int) -> None:
        """Take note of bytes received and deliver every frame they complete."""
        if self._large is not None:
            self._advance_large(num_bytes)
            return
        self._end += num_bytes
        while self._end - self._start >= HEADER.size:
            length, kind, _, frame_id = HEADER.unpack_from(self._buffer, self._start)
            if not self._greeted and (kind != HELLO or length != _HELLO_PAYLOAD.size):
                raise ProtocolError("the peer's first frame is not a handshake")  # before its length is believed
            body = self._start + HEADER.size
            end = body + length
            if end > self._end:
                if length > MAX_PAYLOAD:
                    raise ProtocolError(f"the peer announced a payload of {length} bytes, over the limit")
                if HEADER.size + length > len(self._buffer):
                    self._begin_large(length, kind, frame_id)
                break
            self._start = end
            payload = memoryview(bytes(self._buffer[body:end]))
            if self._greeted:
                self._on_frame(kind, frame_id, payload)
            else:
                _check_hello(payload)
                self._greeted = True
        # a cut frame moves to the front, so that the buffer always has room
        if (rest := self._end - self._start) and self._start:
            self._buffer[:rest] = self._buffer[self._start : self._end]
        self._start, self._end = 0, rest

    def _begin_large(self, length: int, kind: int, frame_id: int) -> None:
        self._large = memoryview(bytearray(length))
        self._large_header = (kind, frame_id)
        body = self._start + HEADER.size
        self._large_filled = self._end - body
        self._large[: self._large_filled] = self._buffer[body : self._end]
        self._start = self._end

    def _advance_large(self, num_bytes: int) -> None:
        assert self._large is not None
        self._large_filled += num_bytes
        if self._large_filled == len(self._large):
            payload, self._large = self._large, None
            self._on_frame(*self._large_header, payload)  # not the handshake, which is small
