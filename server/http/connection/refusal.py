"""Answers to what never became a request, in OpenAI's shape: its route is not known, so its dialect isn't either."""

from server.dialects.writing.error_shapes import openai_error
from server.requests.errors import RequestError

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


def refusal(error: RequestError, *headers: tuple[bytes, bytes]) -> bytes:
    """The whole answer. The connection closes after it."""
    answer = openai_error(error)
    lines = [b"HTTP/1.1 %d %b" % (answer.status, _REASONS[answer.status])]
    length = (b"content-length", b"%d" % len(answer.body))
    lines += [b"%b: %b" % header for header in (*headers, *answer.headers, length)]
    if not any(name == b"connection" for name, _ in answer.headers):
        lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", bytes(answer.body)])
