"""Sending answers."""

from server.dialects.route import Answer
from server.http.body import Send

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
    # In pieces, since TLS encrypts at once what it gets, and then nobody sees how much of it has not left.
    body = memoryview(answer.body)
    for start in range(0, len(body), _PIECE_BYTES):
        piece = body[start : start + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})  # waits until the client has read most of it
