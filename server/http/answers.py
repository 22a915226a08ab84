"""Sending answers."""

from server.dialects.route import Answer
from server.http.body import Message, Send
from server.requests.admission.room import Room
from server.requests.errors import NotReady
from server.requests.trace import Trace

WRITE_BUFFER_BYTES = 64 * 1024  # uvicorn makes a handler wait when more than this has not left yet
_PIECE_BYTES = 256 * 1024


def to_hold(num_bytes: int) -> int:
    """The bytes of an answer that count until its client has read it: none of a small one."""
    return num_bytes if num_bytes > WRITE_BUFFER_BYTES else 0


async def send_answer(send: Send, answer: Answer) -> None:
    """A whole answer. Returns when at most a buffer's worth of a large one still has to leave."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    if len(answer.body) <= WRITE_BUFFER_BYTES:
        await send({"type": "http.response.body", "body": answer.body})
        return
    await _send_pieces(send, answer.body)
    await send({"type": "http.response.body", "body": b""})  # waits until the client has read most of it


async def _send_pieces(send: Send, content: bytes | bytearray | memoryview) -> None:
    """In pieces, since TLS encrypts at once what it gets, and then nobody sees how much of it has not left."""
    body = memoryview(content)
    for start in range(0, len(body), _PIECE_BYTES):
        piece = body[start : start + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})


class HeldSend:
    """The `send` of every route behind FastAPI: no answer begins whose bytes find no room until its client reads them.

    refused  why an answer did not begin: another one may. Its route has got the same as an exception.
    """

    def __init__(self, send: Send, trace: Trace, room: Room) -> None:
        """The trace holds the room."""
        self.refused: NotReady | None = None
        self._send = send
        self._trace = trace
        self._room = room
        self._start: Message | None = None  # until there is something of the body
        self._num_held = 0

    async def __call__(self, message: Message) -> None:
        """Raises NotReady."""
        if message["type"] == "http.response.start":
            self._trace.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self._trace.request_id.encode())]
            self._start = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        self._hold(to_hold(len(body)))
        if (start := self._start) is not None:
            self._start = None
            await self._send(start)
        self._trace.num_bytes += len(body)
        await _send_pieces(self._send, body)
        # Waits until most of it is read: only then the next piece of a file is.
        await self._send({"type": "http.response.body", "body": b"", "more_body": more})

    def _hold(self, num_bytes: int) -> None:
        if num_bytes <= self._num_held:
            return
        try:
            self._trace.hold_answer(self._room, num_bytes)
        except NotReady as error:
            self.refused = error if self._start is not None else None
            raise
        self._num_held = num_bytes
