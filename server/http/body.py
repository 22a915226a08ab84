"""The ASGI types, and reading a body up to a limit."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from server.requests.errors import BodyTooSlow, Overloaded, PayloadTooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

WHOLE_BODY = "embedline.body"  # in a scope: the body's bytes, where it is small and came with the head
SMALL_BYTES = 64 * 1024  # a body up to this size is never refused because of other bodies

_PIECE_SECONDS = 30.0  # between two pieces of a body
# The whole body may take this long, and a second more for each _BYTES_PER_SECOND bytes that have come.
_BODY_SECONDS = 30.0
_BYTES_PER_SECOND = 1024
_LARGE_BYTES = 1 << 20  # of larger decompressed bodies one is in memory at a time
_TURN_SECONDS = 10.0  # to wait for that


class ClientLeft(Exception):
    """The connection closed before the request was whole."""


class BodyReader:
    """Reads bodies of at most `max_bytes` each, and `max_total_bytes` for all that are open in this process.

    A body that comes in one piece is small. It is never refused because of other bodies.
    """

    def __init__(self, *, max_bytes: int, max_total_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._room = max(max_bytes, max_total_bytes)  # one body always fits
        self._turn = asyncio.Lock()  # of large decompressed bodies; who came first is first

    async def read(self, scope: Scope, receive: Receive, content_length: int | None) -> bytes:
        """The whole body. Raises PayloadTooLarge and Overloaded as early as possible, BodyTooSlow, ClientLeft."""
        if content_length is not None and content_length > self._max_bytes:
            raise self._too_large()
        whole: bytes | None = scope.get(WHOLE_BODY)
        if whole is not None and len(whole) <= self._max_bytes:
            return whole
        message = await next_piece(receive)
        if not message.get("more_body"):
            body: bytes = message["body"]
            if len(body) > self._max_bytes:
                raise self._too_large()
            return body
        return await self._read_rest(receive, message["body"])

    async def _read_rest(self, receive: Receive, first: bytes) -> bytes:
        chunks = [first]
        num_bytes = len(first)
        latest = asyncio.get_running_loop().time() + _BODY_SECONDS
        self._room -= num_bytes
        try:
            more = True
            while more:
                self._check(num_bytes)
                message = await next_piece(receive, by=latest + num_bytes / _BYTES_PER_SECOND)
                chunks.append(message["body"])
                num_bytes += len(message["body"])
                self._room -= len(message["body"])
                more = message.get("more_body", False)
            self._check(num_bytes)
            return b"".join(chunks)
        finally:
            self._room += num_bytes

    @contextlib.asynccontextmanager
    async def expanded(self, body: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A body that came compressed, while the block runs; `pieces` are what it is made of.

        A few kilobytes may expand to the limit, so large bodies wait for each other: the block should end soon and keep
        nothing of the body. Raises what `pieces` raises, PayloadTooLarge and Overloaded, each before more than one
        piece too many is held.
        """
        chunks, num_bytes, has_turn = list[bytes](), 0, False
        with self.held(len(body)):
            try:
                async for piece in pieces:
                    chunks.append(piece)
                    num_bytes += len(piece)
                    self._room -= len(piece)
                    if num_bytes > SMALL_BYTES:
                        self._check(num_bytes)
                    if num_bytes > _LARGE_BYTES and not has_turn:
                        await self._take_turn()
                        has_turn = True
                if num_bytes > self._max_bytes:
                    raise self._too_large()
                whole = b"".join(chunks)
                chunks.clear()
                yield whole
            finally:
                self._room += num_bytes
                if has_turn:
                    self._turn.release()

    async def _take_turn(self) -> None:
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise self._too_many() from None

    @contextlib.contextmanager
    def held(self, num_bytes: int) -> Iterator[None]:
        """Count a body as open while the block runs: the request that was made of it is as large."""
        self._room -= num_bytes
        try:
            yield
        finally:
            self._room += num_bytes

    @contextlib.contextmanager
    def whole(self, body: bytes | bytearray) -> Iterator[None]:
        """The same of a body that came in one piece however large it is. Raises Overloaded."""
        with self.held(len(body)):
            if len(body) > SMALL_BYTES:
                self._check(len(body))
            yield

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise self._too_large()
        if self._room < 0:
            raise self._too_many()

    def _too_many(self) -> Overloaded:
        return Overloaded("too many large bodies are open", retry_after=1.0, reason="open_payload")

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body has more than the {self._max_bytes} bytes of --payload-limit")


async def next_piece(receive: Receive, *, by: float = math.inf) -> Message:
    """The next piece of a body; `by` is a time of the loop."""
    gap_ends = asyncio.get_running_loop().time() + _PIECE_SECONDS
    try:
        async with asyncio.timeout_at(min(gap_ends, by)):
            message = await receive()
    except TimeoutError:
        if by < gap_ends:
            raise BodyTooSlow(f"the body came more slowly than {_BYTES_PER_SECOND} bytes a second") from None
        raise BodyTooSlow(f"nothing more of the body came for {_PIECE_SECONDS:g} seconds") from None
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message
