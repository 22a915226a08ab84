"""One request as it came over HTTP: the options that its headers say, in any dialect, and what its body says: read,
expanded, looked through and decoded.

A body of JSON may begin with a byte order mark. A value for which a decoder refuses a whole body is named, or fails
alone where the request allows it. Bodies that are right do not pay for that.
"""

import itertools
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from server.dialects.reading.json_body import BLANK_BOM, BOM, LARGE_BYTES, check_large, pieces, wrong_value
from server.dialects.route import Call, RequestOptions
from server.dialects.row_answers import Container
from server.http.access import Keys
from server.http.body import RequestBodies, Scope, Send, TimedReceive, decoded_bytes_of_large, next_piece
from server.http.compression import coding_of, decompressed, weights
from server.http.paths import Place
from server.requests.admission import Admission
from server.requests.embeddings import UNREADABLE
from server.requests.errors import InvalidRequest, MalformedBody, RequestError
from server.requests.limits import OpenRequest, SharedSlice
from server.requests.models import ModelsState
from server.requests.pipeline import Pipeline
from server.requests.row_memory import SMALL_BYTES
from server.requests.work import EmbedRequest, Trace, text_of
from wire.json_values import Value, is_wrong, marked, place_of, values, without_escapes
from wire.vocabulary import RequestClass

LINES = b"application/x-ndjson"  # the type of a body of lines
_COPIES = 4  # of a body that goes on to another process: decoded, written to it, read there and kept there
_VALUE_BYTES = 32  # what a number of such a body takes there: two bytes may be one
_MAX_VALUES = 1 << 17  # of a body that are looked at
_MAX_WRONG = 4096  # of them that may fail alone
_MARK = b'"%b"' % UNREADABLE.encode()
_Decoded = TypeVar("_Decoded")
# Each name with what it means, and how it counts among names of the same weight. Weights have at most three decimals.
# msgpack goes before JSON: it costs less at both ends, and Baseten's client, which reads both, names JSON first.
_BEFORE, _AFTER = 0.0001, -0.0001
_CONTAINERS = {
    b"application/json": (Container.JSON, 0.0),
    b"*/*": (Container.JSON, _AFTER),
    b"application/*": (Container.JSON, _AFTER),
    b"application/msgpack": (Container.MSGPACK, _BEFORE),
    b"application/x-msgpack": (Container.MSGPACK, _BEFORE),
    b"application/vnd.msgpack": (Container.MSGPACK, _BEFORE),
    b"application/octet-stream": (Container.RAW, 0.0),
    b"application/x-npy": (Container.NPY, 0.0),
    b"application/npy": (Container.NPY, 0.0),
}
_CLASS = b"x-embedline-class"
_CLASSES = {b"interactive": RequestClass.INTERACTIVE, b"bulk": RequestClass.BULK}
_MAX_TIMEOUT_MS = 24 * 3600 * 1000
_MAX_TIMEOUT_DIGITS = len(str(_MAX_TIMEOUT_MS))
_TIMEOUTS = (b"request-timeout-ms", b"x-request-timeout-ms")  # milliseconds from now
_DEADLINE = b"request-deadline-ms"  # milliseconds since 1970, by the client's clock, as Baseten's client sends it
_MAX_DEADLINE_DIGITS = 15
_SAY_MORE = frozenset((_CLASS, *_TIMEOUTS, _DEADLINE))  # the headers that few requests have
_REQUEST_IDS = (b"x-request-id", b"x-baseten-customer-request-id")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


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
            return await self.without_wrong_values(body, decode, error)

    async def without_wrong_values(
        self, body: bytes, decode: Callable[[bytes], _Decoded], refused: MalformedBody
    ) -> _Decoded:
        """The result for a body that was refused. Raises RequestError, if it can with the place of a value."""
        if body.startswith(BOM):
            body = BLANK_BOM + body[len(BOM) :]
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
        for value in itertools.islice(values(bytes(plain)), _MAX_VALUES):
            if is_wrong(body, value):
                found.append(value)
                if len(found) > _MAX_WRONG:
                    break
            await self._time_slice.end_if_over()
        return [value for value in found if place_of(value.path[:1]).isidentifier()]  # else no field is to blame


def num_marked(work: Any) -> int:
    """The marks in texts that may fail alone."""
    request = getattr(work, "work", work)  # as /pooling has it
    if not isinstance(request, EmbedRequest) or not request.allows_errors:
        return 0
    return sum(text_of(item).count(UNREADABLE) for item in request.items)


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


@dataclass(slots=True, kw_only=True)  # not frozen, which takes twice as long to make
class HttpRequest(Call):
    """One request over HTTP, which is also what its route sees of it.

    place        where the path led, if it is not simply the route's own
    path_values  the parts of the path that have names
    whole_body   of a small one that came with the head
    """

    shared: SharedByRequests
    scope: Scope
    receive: TimedReceive
    send: Send
    headers: Mapping[bytes, bytes]
    open: OpenRequest
    decoder: BodyDecoder
    path_values: Mapping[str, Any]
    place: Place | None = None
    whole_body: bytes | None = None
    _held: tuple[RequestBodies, int] | None = None  # bytes that count as an open body until the answer is made

    @property
    def is_head(self) -> bool:
        """Whether nothing of the answer's body is sent."""
        return self.trace.method == "HEAD"

    @property
    def has_lines(self) -> bool:
        """Whether it says that its body is lines."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == LINES

    @property
    def owner(self) -> str:
        """Whose data is shown, by the request's key."""
        return self.shared.keys.owner(self.context.key)

    @property
    def bodies(self) -> RequestBodies:
        """The reader of the bodies of the request's key."""
        return self.shared.bodies.of(self.context.key)

    def query(self) -> list[tuple[str, str]]:
        """Names and values behind the path's question mark; a name may be there twice."""
        return parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)

    async def stream(self) -> AsyncIterator[bytes]:
        """The pieces of the body as they come. Raises BodyTooSlow, Overloaded and ClientLeft."""
        has_more = True
        while has_more:
            message = await next_piece(self.receive)
            has_more = message.get("more_body", False)
            yield message.get("body", b"")

    async def read(
        self, decode: Callable[[Any, bytes], _Decoded], *, goes_on: bool = False, is_json: bool = True
    ) -> _Decoded:
        """The result of `decode` for this request and its body, which counts as open until the answer is made.

        goes_on  whether it goes on to another process: then its copies count
        Raises UnsupportedMedia, PayloadTooLarge, MalformedBody, Overloaded, BodyTooSlow, ClientLeft, and the decoder's
        errors.
        """
        self.open.let_in(self.context.key)
        began, bodies, body, trace = time.perf_counter(), self.bodies, self.whole_body, self.trace
        is_usual = not goes_on and b"content-encoding" not in self.headers
        if is_usual and body is not None and len(body) <= min(bodies.max_bytes, SMALL_BYTES):
            trace.num_body_bytes = len(body)
            trace.read_seconds = time.perf_counter() - began
            try:
                found = decode(self, body)
            except MalformedBody as error:
                found = await self.decoder.without_wrong_values(body, partial(decode, self), error)
            self._hold(bodies, len(body))
            return found
        coding = coding_of(self.headers)
        length = self.headers.get(b"content-length")  # a number: the HTTP parser has checked it
        body = await bodies.read(body, self.receive, None if length is None else int(length))
        trace.num_body_bytes = len(body)
        if self.whole_body is None:
            self.open.let_in(self.context.key)  # others were, while it waited for its body
        trace.read_seconds = time.perf_counter() - began
        decoded = partial(self._decoded, decode=decode, goes_on=goes_on, is_json=is_json)
        if coding is None:
            with bodies.held(len(body) if len(body) > SMALL_BYTES else 0):
                return await decoded(body, num_open=len(body))
        async with bodies.expanded(body, decompressed(body, coding)) as whole:
            trace.read_seconds = time.perf_counter() - began
            return await decoded(whole, num_open=len(body) + len(whole))

    def let_go(self) -> None:
        """Count nothing of the body any more."""
        if self._held is not None:
            bodies, num_bytes = self._held
            bodies.hold(-num_bytes)
            self._held = None

    async def _decoded(
        self, body: bytes, *, decode: Callable[[Any, bytes], _Decoded], goes_on: bool, is_json: bool, num_open: int
    ) -> _Decoded:
        """The result for a whole body, of which so many bytes are open. Raises Overloaded, and what decoding raises."""
        bodies, own = self.bodies, partial(decode, self)
        num_bytes = len(body) if len(body) <= SMALL_BYTES else await decoded_bytes_of_large(body)
        bodies.check(num_bytes - len(body), held=num_open)
        if goes_on:
            of_values = _VALUE_BYTES * body.count(b",") if is_json else 0
            num_bytes = max(_COPIES * len(body), min(of_values, bodies.max_of_key))
            bodies.check(num_bytes, held=2 * len(body))
        decoded = await self.decoder.decoded(body, own) if is_json else own(body)
        self._hold(bodies, num_bytes)
        return decoded

    def _hold(self, bodies: RequestBodies, num_bytes: int) -> None:
        self._held = bodies, num_bytes
        bodies.hold(num_bytes)


def read_options(headers: Mapping[bytes, bytes]) -> RequestOptions:
    """Raises InvalidRequest, naming the header. Names are in lower case."""
    usual = _usual_options(headers.get(b"accept", b""))
    if _SAY_MORE.isdisjoint(headers):
        return usual
    return RequestOptions(_read_class(headers), _read_deadline(headers), usual.accepts)


@lru_cache(maxsize=64)  # a client sends the same value each time
def _usual_options(accept: bytes) -> RequestOptions:
    """Those of a request that says only what it accepts."""
    return RequestOptions(accepts=accepted_container(accept))


def request_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's own id of the request; None if it has none, or one that is not safe in a log."""
    for name in _REQUEST_IDS:
        given = headers.get(name)
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
    return None


def request_ids() -> Iterator[str]:
    """Ids for requests without one. No two are the same, in all processes."""
    prefix = secrets.token_hex(6)
    return (f"{prefix}{number:x}" for number in itertools.count())


def _read_deadline(headers: Mapping[bytes, bytes]) -> float:
    """The earliest of all that are given: the client and a proxy may each set one."""
    deadline = math.inf
    for name in _TIMEOUTS:
        if (value := headers.get(name)) is not None:
            deadline = min(deadline, time.monotonic() + _read_timeout(value, name.decode()) / 1000)
    if (value := headers.get(_DEADLINE)) is not None:
        if not value.isdigit() or len(value) > _MAX_DEADLINE_DIGITS:
            raise InvalidRequest("request-deadline-ms must be milliseconds since 1970", param="request-deadline-ms")
        deadline = min(deadline, time.monotonic() + int(value) / 1000 - time.time())
    return deadline


def _read_timeout(value: bytes, name: str) -> int:
    milliseconds = int(value) if value.isdigit() and len(value) <= _MAX_TIMEOUT_DIGITS else 0
    if not 1 <= milliseconds <= _MAX_TIMEOUT_MS:
        raise InvalidRequest(f"{name} must be a whole number from 1 to {_MAX_TIMEOUT_MS}", param=name)
    return milliseconds


def _read_class(headers: Mapping[bytes, bytes]) -> RequestClass | None:
    value = headers.get(_CLASS)
    if value is None:
        return None
    request_class = _CLASSES.get(value.lower())
    if request_class is None:
        raise InvalidRequest("x-embedline-class must be interactive or bulk", param="x-embedline-class")
    return request_class


def accepted_container(accept: bytes) -> Container:
    """The container that rows are wanted in: the one with the highest weight, of several the first; JSON where nothing
    is named."""
    best, best_weight = Container.JSON, 0.0
    for name, weight in weights(accept):
        if weight > 0 and name in _CONTAINERS:
            named, more = _CONTAINERS[name]
            if weight + more > best_weight:
                best, best_weight = named, weight + more
    return best
