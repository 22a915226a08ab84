"""The same framed connection for a process that uses threads instead of an event loop."""

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
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(self._arrived or poll.poll(1000 * seconds))

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
        unsent = [memoryview(part).cast("B") for part in parts]
        while unsent:
            num_bytes = self._socket.sendmsg(unsent[:_MAX_PARTS])
            while unsent and num_bytes >= len(unsent[0]):
                num_bytes -= len(unsent.pop(0))
            if num_bytes:
                unsent[0] = unsent[0][num_bytes:]
