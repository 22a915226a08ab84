"""One request as it came, and what its body says: read, expanded, looked through and decoded.

A body of JSON may begin with a byte order mark. A value for which a decoder refuses a whole body is named, or fails
alone where the request allows it. Bodies that are right do not pay for that. Some requests go on to another process:
`PassedOn` is what the application asks of their routes.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from server.dialects.invocations import Chosen
from server.dialects.reading.json_body import BOM, LARGE_BYTES, check_large, pieces, wrong_value
from server.dialects.route import Answer
from server.http import compression
from server.http.auth import Keys
from server.http.body import RequestBodies, Scope, Send, TimedReceive, decoded_bytes_of_large
from server.http.paths import Place
from server.requests.admission import Admission
from server.requests.concurrency import OpenRequest
from server.requests.embeddings import UNREADABLE
from server.requests.errors import MalformedBody, RequestError
from server.requests.models import ModelsState
from server.requests.pipeline import Pipeline
from server.requests.row_memory import SMALL_BYTES, RequestContext
from server.requests.time_slices import SharedSlice
from server.requests.trace import Trace
from server.requests.work import EmbedRequest
from wire.json_values import Value, is_wrong, marked, place_of, values, without_escapes

_COPIES = 4  # of a body that goes on to another process: decoded, written to it, read there and kept there
_VALUE_BYTES = 32  # what a number of such a body takes there: two bytes may be one
_MAX_VALUES = 1 << 17  # of a body that are looked at
_MAX_WRONG = 4096  # of them that may fail alone
_MARK = b'"%b"' % UNREADABLE.encode()
_Decoded = TypeVar("_Decoded")
HeaderList = Sequence[tuple[bytes, bytes]]  # as they came: a name may be there twice


class BodyDecoder:
    """The decoder of one frontend. What looks for wrong values shares a slice of time."""

    def __init__(self) -> None:
        self._time_slice = SharedSlice()

    async def decoded(self, body: bytes, decode: Callable[[bytes], _Decoded]) -> _Decoded:
        """The result of `decode` for JSON. Texts that can't be read have marks in it, if they may fail alone.

        Raises MalformedBody, and what `decode` raises.
        """
        try:
            if len(body) > LARGE_BYTES:
                await check_large(body)
            return decode(body)
        except MalformedBody as error:
            return await self._without_wrong_values(body, decode, error)

    async def _without_wrong_values(
        self, body: bytes, decode: Callable[[bytes], _Decoded], refused: MalformedBody
    ) -> _Decoded:
        """The result for a body that was refused. Raises RequestError, if it can with the place of a value."""
        if body.startswith(BOM):
            body = body[len(BOM) :]
            try:
                return decode(body)
            except MalformedBody as error:
                refused = error
        wrong = await self._wrong_values(body)
        if not wrong:
            raise refused
        named = wrong_value(body, wrong[0])
        if not all(body.startswith(b'"', value.start) for value in wrong):
            raise named
        try:
            work = decode(marked(body, wrong, _MARK))
        except RequestError:
            raise named from None
        if num_marked(work) != len(wrong):
            raise named
        return work

    async def _wrong_values(self, body: bytes) -> list[Value]:
        """The wrong values, at most one more than may fail alone. Lets other requests run meanwhile."""
        found, plain = list[Value](), bytearray()
        for piece in pieces(body):
            plain += without_escapes(piece)
            await self._time_slice.end_if_over()
        for value in islice(values(bytes(plain)), _MAX_VALUES):
            if is_wrong(body, value):
                found.append(value)
                if len(found) > _MAX_WRONG:
                    break
            await self._time_slice.end_if_over()
        return [value for value in found if place_of(value.path[:1]).isidentifier()]  # else no field is to blame


def num_marked(work: Any) -> int:
    """The marks in texts that may fail alone."""
    request = work.request if isinstance(work, Chosen) else work
    request = getattr(request, "work", request)  # as /pooling has it
    if not isinstance(request, EmbedRequest) or not request.allows_errors:
        return 0
    return sum(text.count(UNREADABLE) for text in request.texts or ())


class Read(Protocol):
    """Reads the body and gives what the decoder makes of it. Raises what both raise."""

    def __call__(self, decode: Callable[[bytes], _Decoded], /, *, is_json: bool = True) -> Awaitable[_Decoded]: ...


PassOn = Callable[[Read, HeaderList, str], Awaitable[Answer]]  # the last is the owner of the request's key


class PassedOn(Protocol):
    """One route; `route` is its path, for metrics."""

    @property
    def route(self) -> str: ...

    def at(self, method: str, path: str) -> PassOn | None:
        """Answers a request there, and raises RequestError; None if it is not this route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedByRequests:
    """What all requests of a frontend share, over HTTP and gRPC.

    finished   gets the trace of every request, also of those that failed or whose client left
    max_items  texts, pairs or lists of ids that one request may have
    """

    state: ModelsState
    admission: Admission
    pipeline: Pipeline
    bodies: RequestBodies
    keys: Keys
    finished: Callable[[Trace], None]
    max_items: int


@dataclass(slots=True)  # not frozen, which takes twice as long to make
class HttpRequest:
    """One request as it came."""

    scope: Scope
    receive: TimedReceive
    send: Send
    headers: Mapping[bytes, bytes]
    trace: Trace
    open: OpenRequest
    decoder: BodyDecoder
    context: RequestContext
    place: Place | None = None  # None = the path is a POST route's own
    whole_body: bytes | None = None  # of a small one that came with the head
    num_decoded_bytes: int = 0  # what its body takes in memory, once it is read

    async def read(self, bodies: RequestBodies, decode: Callable[[bytes], Awaitable[_Decoded]]) -> _Decoded:
        """The result of `decode` for the body. `bodies` are those of the key.

        Raises UnsupportedMedia, PayloadTooLarge, MalformedBody, Overloaded, BodyTooSlow, ClientLeft, and the decoder's
        errors.
        """
        trace = self.trace
        began, coding = time.perf_counter(), compression.coding_of(self.headers)
        length = self.headers.get(b"content-length")  # a number: the HTTP parser has checked it
        body = await bodies.read(self.whole_body, self.receive, None if length is None else int(length))
        trace.num_body_bytes = len(body)
        if self.whole_body is None:
            self.open.let_in(self.context.key)  # others were, while it waited for its body
        trace.read_seconds = time.perf_counter() - began
        if coding is not None:
            async with bodies.expanded(body, compression.decompressed(body, coding)) as whole:
                trace.read_seconds = time.perf_counter() - began
                await self._check_decoded(bodies, whole, held=len(body) + len(whole))
                return await decode(whole)
        if len(body) <= SMALL_BYTES:
            self.num_decoded_bytes = len(body)
            return await decode(body)
        with bodies.held(len(body)):
            await self._check_decoded(bodies, body, held=len(body))
            return await decode(body)

    async def _check_decoded(self, bodies: RequestBodies, body: bytes, *, held: int) -> None:
        """Raises Overloaded."""
        self.num_decoded_bytes = len(body) if len(body) <= SMALL_BYTES else await decoded_bytes_of_large(body)
        bodies.check(self.num_decoded_bytes - len(body), held=held)

    def holding(self, bodies: RequestBodies, held: contextlib.ExitStack) -> Read:
        """Reads a body that goes on to another process: its copies count as open until `held` is closed."""

        async def read(decode: Callable[[bytes], _Decoded], *, is_json: bool = True) -> _Decoded:
            async def decode_and_hold(body: bytes) -> _Decoded:
                of_values = _VALUE_BYTES * body.count(b",") if is_json else 0
                num_bytes = max(_COPIES * len(body), min(of_values, bodies.max_of_key))
                bodies.check(num_bytes, held=2 * len(body))
                decoded = await self.decoder.decoded(body, decode) if is_json else decode(body)
                held.enter_context(bodies.held(num_bytes))
                return decoded

            return await self.read(bodies, decode_and_hold)

        return read
