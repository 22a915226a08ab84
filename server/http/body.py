"""The ASGI types, the clock of every body, and how many bytes of bodies and answers are read and held at most."""

import asyncio
import contextlib
import copy
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import numpy as np

from server.requests.errors import BodyTooSlow, Overloaded, PayloadTooLarge
from server.requests.limits import GAVE_WAY, OpenRequest, TimeSlice, gave_way
from server.requests.row_memory import SMALL_BYTES

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

WHOLE_BODY = "embedline.body"  # in a scope: the body's bytes, where it is small and came with the head
STOPPING = "stopping"  # says why a handler is cancelled: the server can't wait any longer; else its client has left
WRITE_BUFFER_BYTES = 64 * 1024  # a handler waits when more than this of an answer has not left yet

_PIECE_SECONDS = 30.0  # between two pieces of a body
# A client may keep the server waiting for its body so long; each _BYTES_PER_SECOND bytes that come give a second back.
_BODY_SECONDS = 30.0
_BYTES_PER_SECOND = 1024
_LARGE_BYTES = 1 << 20  # of larger decompressed bodies one is in memory at a time
_TURN_SECONDS = 10.0  # to wait for that
_ROOM_SECONDS = 600.0  # that a body of lines waits for others


class ClientLeft(Exception):
    """The connection closed before the request was whole; its handler may be cancelled instead, if it does not read."""


class TimedReceive:
    """The `receive` that every route gets, so that none can forget it: a body that stops coming ends the request.

    While it waits the request takes no place of those that are worked on.
    """

    def __init__(self, receive: Receive, request: OpenRequest, *, is_whole: bool) -> None:
        """`is_whole` says that the body has come: then it only waits for the client to leave."""
        self._receive = receive
        self._request = request
        self._is_whole = is_whole
        self._seconds_left = _BODY_SECONDS

    async def __call__(self) -> Message:
        """Raises BodyTooSlow, and Overloaded where it gives way to other requests of its key."""
        if self._is_whole:
            return await self._receive()
        began = asyncio.get_running_loop().time()
        clock = asyncio.timeout_at(began + min(self._seconds_left, _PIECE_SECONDS))
        try:
            async with clock:
                with self._request.waiting_for_body(clock):
                    message = await self._receive()
        except TimeoutError:
            raise self._too_late(clock) from None
        waited = asyncio.get_running_loop().time() - began
        came = len(message.get("body", b"")) / _BYTES_PER_SECOND
        self._seconds_left = min(_BODY_SECONDS, self._seconds_left - waited + came)
        self._is_whole = not message.get("more_body", False)
        return message

    def _too_late(self, clock: asyncio.Timeout) -> BodyTooSlow | Overloaded:
        if clock.when() == GAVE_WAY:
            return gave_way()
        if self._seconds_left < _PIECE_SECONDS:
            return BodyTooSlow(f"the body came more slowly than {_BYTES_PER_SECOND} bytes a second")
        return _nothing_came()

    async def of_stream(self) -> Message:
        """The next piece of a body without end, whose client may pause: who reads it knows when that is too long.

        Raises BodyTooSlow.
        """
        try:
            async with asyncio.timeout(_PIECE_SECONDS):
                return await self._receive()
        except TimeoutError:
            raise _nothing_came() from None


def _nothing_came() -> BodyTooSlow:
    return BodyTooSlow(f"nothing more of the body came for {_PIECE_SECONDS:g} seconds")


class _Open:
    """The bytes of all open bodies of a process, and of each key's. `num_bytes` is to be read only."""

    def __init__(self, max_bytes: int, max_of_key: int) -> None:
        self._max_bytes = max_bytes
        self.max_of_key = max_of_key
        self.num_bytes = 0
        self._of_key = Counter[str]()
        self._has_less = asyncio.Event()

    def hold(self, num_bytes: int, key: str) -> None:
        self.num_bytes += num_bytes
        self._of_key[key] += num_bytes
        if num_bytes < 0:
            self._has_less.set()

    async def wait_for_room(self, key: str, more: int) -> None:
        """Wait until there are not too many with so many more."""
        while self.are_too_many(key, more=more):
            self._has_less.clear()
            await self._has_less.wait()

    def are_too_many(self, key: str, *, more: int = 0, but: int = 0) -> bool:
        """Whether so many more bytes are too many, where more than `but` are open already."""
        of_all, of_key = self.num_bytes, self._of_key[key]
        return (of_all + more > self._max_bytes and of_all > but) or (of_key + more > self.max_of_key and of_key > but)


class RequestBodies:
    """Reads bodies of at most `max_bytes` each, and `max_total_bytes` for all that are open in this process.

    Of several keys one has at most half of those. A body that comes in one piece is small. It is never refused because
    of other bodies.
    """

    def __init__(self, *, max_bytes: int, max_total_bytes: int, are_keys_several: bool = False) -> None:
        self.max_bytes = max_bytes  # of one body; to be read only
        total = max(max_bytes, max_total_bytes)  # one body always fits
        self._open = _Open(total, max(max_bytes, total // 2) if are_keys_several else total)
        self._turn = asyncio.Lock()  # of large decompressed bodies; who came first is first
        self._key = ""
        self._of_keys: dict[str, RequestBodies] = {}

    @property
    def max_of_key(self) -> int:
        """The bytes that one key may have open."""
        return self._open.max_of_key

    def of(self, key: str) -> "RequestBodies":
        """The reader of one key's bodies."""
        if key not in self._of_keys:
            self._of_keys[key] = copy.copy(self)
            self._of_keys[key]._key = key
        return self._of_keys[key]

    async def read(self, whole: bytes | None, receive: Receive, content_length: int | None) -> bytes:
        """The whole body; `whole` is one that came with its head.

        Raises PayloadTooLarge and Overloaded as early as possible, BodyTooSlow, ClientLeft.
        """
        if content_length is not None and content_length > self.max_bytes:
            raise self._too_large()
        if whole is not None and len(whole) <= self.max_bytes:
            return whole
        message = await next_piece(receive)
        if not message.get("more_body"):
            body: bytes = message["body"]
            if len(body) > self.max_bytes:
                raise self._too_large()
            return body
        return await self._read_rest(receive, message["body"])

    async def _read_rest(self, receive: Receive, first: bytes) -> bytes:
        chunks = [first]
        num_bytes = len(first)
        self._open.hold(num_bytes, self._key)
        try:
            more = True
            while more:
                self._check(num_bytes)
                message = await next_piece(receive)
                chunks.append(message["body"])
                num_bytes += len(message["body"])
                self._open.hold(len(message["body"]), self._key)
                more = message.get("more_body", False)
            self._check(num_bytes)
            return b"".join(chunks)
        finally:
            self._open.hold(-num_bytes, self._key)

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
                    self._open.hold(len(piece), self._key)
                    if num_bytes > SMALL_BYTES:
                        self._check(num_bytes)
                    if num_bytes > _LARGE_BYTES and not has_turn:
                        await self._take_turn()
                        has_turn = True
                if num_bytes > self.max_bytes:
                    raise self._too_large()
                whole = b"".join(chunks)
                chunks.clear()
                yield whole
            finally:
                self._open.hold(-num_bytes, self._key)
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
        self.hold(num_bytes)
        try:
            yield
        finally:
            self.hold(-num_bytes)

    def hold(self, num_bytes: int) -> None:
        """Count so many bytes more as open, or less where the number is negative."""
        self._open.hold(num_bytes, self._key)

    @contextlib.contextmanager
    def whole(self, body: bytes | bytearray) -> Iterator[None]:
        """Counts a body that came in one piece however large it is. Raises Overloaded."""
        with self.held(len(body)):
            if len(body) > SMALL_BYTES:
                self._check(len(body))
            yield

    async def wait_for_room(self, num_bytes: int) -> None:
        """Wait until a body may take so many bytes. Raises Overloaded if that takes too long."""
        try:
            async with asyncio.timeout(_ROOM_SECONDS):
                await self._open.wait_for_room(self._key, num_bytes)
        except TimeoutError:
            raise self._too_many() from None

    def check(self, num_bytes: int, *, held: int) -> None:
        """Before a body takes so many bytes more than those that are `held` of it. Raises Overloaded."""
        if num_bytes > SMALL_BYTES and self._open.are_too_many(self._key, more=num_bytes, but=held):
            raise self._too_many()

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self.max_bytes:
            raise self._too_large()
        if self._open.are_too_many(self._key):
            raise self._too_many()

    def _too_many(self) -> Overloaded:
        return Overloaded("too many large bodies are open", reason="open_payload")

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body has more than the {self.max_bytes} bytes of --payload-limit")


def to_hold(num_bytes: int) -> int:
    """The bytes of an answer that count until its client has read it: none of a small one."""
    return num_bytes if num_bytes > WRITE_BUFFER_BYTES else 0


def decoded_bytes(body: bytes) -> int:
    """The bytes that a body's texts take at most once it is decoded: of a text with one wide character all take as
    much."""
    return len(body) if len(body) <= SMALL_BYTES else _widest(body, 0, len(body)) * len(body)


async def decoded_bytes_of_large(body: bytes) -> int:
    """Does as `decoded_bytes` for a body of more than SMALL_BYTES. Lets other requests run meanwhile."""
    widest, time_slice = 1, TimeSlice()
    for start in range(0, len(body), SMALL_BYTES):
        stop = min(start + SMALL_BYTES + 2, len(body))  # an escape may begin in the last byte of the slice
        widest = max(widest, _widest(body, start, stop))
        await time_slice.end_if_over()
    return widest * len(body)


def _widest(json: bytes, start: int, stop: int) -> int:
    """Bytes of the widest character between two places."""
    letter = int(np.frombuffer(json, np.uint8, stop - start, start).max())
    escape = json.find(b"\\u", start, stop) if json.find(b"\\", start, stop) >= 0 else -1
    is_pair = escape >= 0 and any(json.find(half, escape, stop) >= 0 for half in (b"\\ud", b"\\uD"))
    if letter >= 0xF0 or is_pair:  # beyond U+FFFF; surrogates in pairs
        return 4
    return 2 if letter >= 0xC4 or escape >= 0 else 1  # beyond U+00FF


async def next_piece(receive: Receive) -> Message:
    """The next piece of a body. Raises ClientLeft."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message
