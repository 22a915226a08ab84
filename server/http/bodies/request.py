"""One request as it came, and what its body says: read, expanded, looked through and decoded."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from server.http.bodies import compression
from server.http.bodies.decoding import BodyDecoder, DecodeMarked
from server.http.body import SMALL_BYTES, WHOLE_BODY, BodyReader, Scope, Send, TimedReceive, decoded_bytes_of_large
from server.http.passed_on import Read
from server.http.paths import Place
from server.requests.admission.open_requests import OpenRequest
from server.requests.trace import Trace

_COPIES = 4  # of a body that goes on to another process: decoded, written to it, read there and kept there
_VALUE_BYTES = 32  # what a number of such a body takes there: two bytes may be one
_Decoded = TypeVar("_Decoded")


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
    place: Place | None = None  # None = the path is a POST route's own
    num_decoded_bytes: int = 0  # what its body takes in memory, once it is read

    async def read(
        self,
        bodies: BodyReader,
        decode: Callable[[bytes], _Decoded],
        *,
        is_json: bool = True,
        decode_marked: DecodeMarked[_Decoded] | None = None,
    ) -> _Decoded:
        """What `decode` makes of the body, or `decode_marked` if it has wrong texts. `bodies` are those of the key.

        Raises UnsupportedMedia, PayloadTooLarge, MalformedBody, Overloaded, BodyTooSlow, ClientLeft, and the decoder's
        errors.
        """
        trace = self.trace
        began, coding = time.perf_counter(), compression.coding_of(self.headers)
        length = self.headers.get(b"content-length")  # a number: the HTTP parser has checked it
        body = await bodies.read(self.scope, self.receive, None if length is None else int(length))
        trace.num_body_bytes = len(body)
        if WHOLE_BODY not in self.scope:
            self.open.let_in(trace.key)  # others were, while it waited for its body
        trace.read_seconds = time.perf_counter() - began
        if coding is not None:
            async with bodies.expanded(body, compression.decompressed(body, coding)) as whole:
                trace.read_seconds = time.perf_counter() - began
                await self._check_decoded(bodies, whole, held=len(body) + len(whole))
                return await self.decoder.decoded(whole, decode, decode_marked) if is_json else decode(whole)
        if len(body) <= SMALL_BYTES:
            self.num_decoded_bytes = len(body)
            return await self.decoder.decoded(body, decode, decode_marked) if is_json else decode(body)
        with bodies.held(len(body)):
            await self._check_decoded(bodies, body, held=len(body))
            return await self.decoder.decoded(body, decode, decode_marked) if is_json else decode(body)

    async def _check_decoded(self, bodies: BodyReader, body: bytes, *, held: int) -> None:
        """Raises Overloaded."""
        self.num_decoded_bytes = len(body) if len(body) <= SMALL_BYTES else await decoded_bytes_of_large(body)
        bodies.check(self.num_decoded_bytes - len(body), held=held)

    def holding(self, bodies: BodyReader, held: contextlib.ExitStack) -> Read:
        """Reads a body that goes on to another process: its copies count as open until `held` is closed."""

        async def read(decode: Callable[[bytes], _Decoded], *, is_json: bool = True) -> _Decoded:
            def decode_and_hold(body: bytes) -> _Decoded:
                values = _VALUE_BYTES * body.count(b",") if is_json else 0
                num_bytes = max(_COPIES * len(body), min(values, bodies.max_of_key))
                bodies.check(num_bytes, held=2 * len(body))
                decoded = decode(body)
                held.enter_context(bodies.held(num_bytes))
                return decoded

            return await self.read(bodies, decode_and_hold, is_json=is_json)

        return read
