"""Sending answers, and a limit on those that their clients have not read yet."""

from server.dialects.route import Answer
from server.http.body import Send
from server.requests.errors import NotReady

WRITE_BUFFER_BYTES = 64 * 1024  # uvicorn makes a handler wait when more than this has not left yet
_PIECE_BYTES = 256 * 1024
MAX_UNREAD_BYTES = 128 * 1024 * 1024


class Answers:
    """Sends answers, of which at most `max_unread_bytes` wait for their clients in this process; one always may.

    Small answers are neither counted nor refused: a connection holds at most two buffers' worth of them.
    """

    def __init__(self, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_unread_bytes = max_unread_bytes
        self._num_unread_bytes = 0

    def check(self, num_bytes: int) -> None:
        """Raises NotReady if an answer of this size can't be held now."""
        if num_bytes <= WRITE_BUFFER_BYTES or not self._num_unread_bytes:
            return
        if self._num_unread_bytes + num_bytes > self._max_unread_bytes:
            message = "too many large answers wait for clients that have not read them"
            raise NotReady(message, retry_after=1.0, reason="unread_answers")

    async def send(self, send: Send, answer: Answer) -> None:
        """A whole answer. Returns when at most a buffer's worth of a large one still has to leave."""
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        if len(answer.body) <= WRITE_BUFFER_BYTES:
            await send({"type": "http.response.body", "body": answer.body})
            return
        self._num_unread_bytes += len(answer.body)
        try:
            # In pieces, since TLS encrypts at once what it gets, and then nobody sees how much of it has not left.
            body = memoryview(answer.body)
            for start in range(0, len(body), _PIECE_BYTES):
                piece = body[start : start + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})  # waits until the client has read most of it
        finally:
            self._num_unread_bytes -= len(answer.body)
