"""A framed connection on a Unix socket whose frames may bring open descriptors along. For a few small frames.

Works on a blocking socket, and on one that does not block where `receive` is called when there is something to read.
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from wire import frames
from wire.frames import Buffer, FrameParser

_MAX_DESCRIPTORS = 64  # of one read
_MAX_READ = 4096  # bytes: small frames, one at a time or a few
_UCRED = struct.Struct("iII")  # pid, uid, gid


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel knows it."""

    pid: int
    uid: int


def peer_of(channel: socket.socket) -> Peer:
    """Who connected, or called listen() at the other end."""
    pid, uid, _ = _UCRED.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid)


class DescriptorConnection:
    """One end of the connection. The handshake is sent at once.

    descriptors  received and not taken yet, in their order; what is left is closed with the connection
    """

    def __init__(self, channel: socket.socket) -> None:
        self.descriptors: deque[int] = deque()
        self._socket = channel
        self._arrived: list[tuple[int, memoryview]] = []
        self._parser = FrameParser(lambda kind, _, payload: self._arrived.append((kind, payload)))
        self.send_buffers(frames.hello())

    @property
    def peer(self) -> Peer:
        """Who connected, or listened."""
        return peer_of(self._socket)

    def fileno(self) -> int:
        """The descriptor for an event loop to wait on."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        """Whether `receive` waits."""
        self._socket.setblocking(flag)

    def send(self, kind: int, parts: Sequence[Buffer] = (), *, descriptors: Sequence[int] = ()) -> None:
        """One frame. Raises OSError once the peer is gone."""
        self.send_buffers(frames.frame(kind, 0, parts), descriptors)

    def send_buffers(self, buffers: Sequence[Buffer], descriptors: Sequence[int] = ()) -> None:
        """A frame as it is; small enough for the socket's buffer to take it whole."""
        data = b"".join(buffers)
        if socket.send_fds(self._socket, [data], descriptors) != len(data):
            raise BlockingIOError("the peer does not read")

    def receive(self) -> list[tuple[int, memoryview]]:
        """Read once and return the whole frames in it: kind, payload.

        Raises EOFError once the peer has closed, ProtocolError where it is not one of ours or another version.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MAX_READ, _MAX_DESCRIPTORS)
        except ConnectionError as error:
            raise EOFError from error
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self.descriptors += descriptors
        if not data:
            raise EOFError
        self._parser.writable()[: len(data)] = data
        self._parser.advance(len(data))
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        """Close the socket and what nobody took."""
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())
