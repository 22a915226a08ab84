"""A small HTTP client of this very server: one connection to a Unix socket, one request at a time.

It knows only what our frontends answer: HTTP/1.1 with a content-length. Its statuses say whether a request that was
refused or has failed is sent again.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

BUSY = frozenset({429, 503})  # the server had no room, and has computed nothing
FAILED_FOR_NOW = frozenset({424, 500, 502, 504})  # the next attempt may be better; 424 is TEI's word for 500
_MAX_HEAD_BYTES = 64 * 1024

Header = tuple[str, str]


class ConnectionLost(Exception):
    """The connection ended before the answer was whole. The request may have been computed."""


class AnswerTooLarge(Exception):
    """The answer has more bytes than the caller takes."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


class HttpConnection:
    """Connects when it is first used, and again after it was lost. Cancelling a request closes it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, target: str, headers: Iterable[Header], body: bytes, *, max_bytes: int) -> HttpAnswer:
        """The answer to one request. Raises ConnectionLost and AnswerTooLarge.

        A connection that the server closed while it was idle is made again.
        """
        was_open = self._streams is not None
        try:
            return await self._exchange(target, headers, body, max_bytes)
        except _ClosedBeforeAnswer:
            if not was_open:
                raise
        return await self._exchange(target, headers, body, max_bytes)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, target: str, headers: Iterable[Header], body: bytes, max_bytes: int) -> HttpAnswer:
        is_whole = False
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path, limit=_MAX_HEAD_BYTES)
            reader, writer = self._streams
            await _write(writer, _head(target, headers, len(body)), body)
            answer, stays_open = await _answer(reader, max_bytes)
            is_whole = stays_open
            return answer
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise ConnectionLost(str(error)) from None
        finally:
            if not is_whole:
                self.close()


class _ClosedBeforeAnswer(ConnectionLost):
    """Not one byte of an answer came: most likely it was closed as idle."""


def _head(target: str, headers: Iterable[Header], num_bytes: int) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, f"content-length: {num_bytes}", "", ""]).encode()


async def _write(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    """Raises _ClosedBeforeAnswer."""
    writer.write(head)
    writer.write(body)
    try:
        await writer.drain()
    except OSError:
        raise _ClosedBeforeAnswer("closed before it was sent") from None


async def _answer(reader: asyncio.StreamReader, max_bytes: int) -> tuple[HttpAnswer, bool]:
    """The answer, and whether the connection stays open after it. Raises OSError, EOFError and ValueError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        raise _ClosedBeforeAnswer("closed before an answer") from None
    except ConnectionResetError:
        raise _ClosedBeforeAnswer("reset before an answer") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    length = int(headers["content-length"]) if "content-length" in headers else -1
    if length < 0:
        raise ValueError("an answer without its length")
    if length > max_bytes:
        raise AnswerTooLarge(f"the answer has {length} bytes")
    body = await reader.readexactly(length)
    return HttpAnswer(int(first.split()[1]), headers, body), headers.get("connection", "").lower() != "close"
