"""The end of a framed connection in a process that uses threads: see wire.connection. Imports no asyncio."""

import select
import socket
from collections import deque
from collections.abc import Iterator, Sequence

from wire import frames
from wire.frames import Buffer, FrameParser

_MAX_PARTS = 512  # of one sendmsg; the kernel's limit is 1,024


class BlockingConnection:
    """One thread may receive while another sends; two threads must not send at once."""

    def __init__(self, channel: socket.socket) -> None:
        self._socket = channel
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._arrived: deque[tuple[int, int, memoryview]] = deque()
        self._parser = FrameParser(lambda kind, frame_id, payload: self._arrived.append((kind, frame_id, payload)))
        self._send(frames.hello())

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> None:
        """Block until the frame is in the socket. Raises OSError once the peer is gone."""
        self._send(frames.frame(kind, frame_id, parts))

    def receive(self) -> Iterator[tuple[int, int, memoryview]]:
        """Block until something comes and yield the whole frames in it: kind, id, payload.

        Raises EOFError once the peer has closed, ProtocolError where it is not one of ours.
        """
        if not self._arrived:  # a caller that stopped in the middle gets the rest first
            self._parser.advance(self._receive_some())
        while self._arrived:
            yield self._arrived.popleft()

    def wait(self, seconds: float) -> bool:
        """Whether something to receive comes within so long."""
        return bool(self._arrived or self._poll.poll(1000 * seconds))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _receive_some(self) -> int:
        try:
            num_bytes = self._socket.recv_into(self._parser.writable())
        except ConnectionError as error:
            raise EOFError from error
        if num_bytes == 0:
            raise EOFError
        return num_bytes

    def _send(self, parts: list[Buffer]) -> None:
        while parts:
            parts = _rest(parts, self._socket.sendmsg(parts[:_MAX_PARTS]))


def _rest(parts: list[Buffer], num_bytes: int) -> list[Buffer]:
    """What is left of the parts after so many bytes."""
    for number, part in enumerate(parts):
        size = part.nbytes if isinstance(part, memoryview) else len(part)
        if num_bytes < size:
            return [memoryview(part).cast("B")[num_bytes:], *parts[number + 1 :]]
        num_bytes -= size
    return []
