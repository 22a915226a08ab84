"""Has a body of JSON decoded, with a byte order mark or not.

A value for which a decoder refuses a whole body is named, or fails alone where the request allows it. That costs bodies
nothing that are right.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from server.dialects.invocations import Chosen
from server.dialects.reading.json_body import BOM, LARGE_BYTES, check_large, pieces, wrong_value
from server.requests.errors import MalformedBody, RequestError
from server.requests.inputs.partial import UNREADABLE
from server.requests.time_slices import SharedSlice
from server.requests.work import EmbedRequest
from wire.json_values import Value, is_wrong, marked, place_of, values, without_escapes

_MAX_VALUES = 1 << 17  # of a body that are looked at
_MAX_WRONG = 4096  # of them that may fail alone
_MARK = b'"%b"' % UNREADABLE.encode()
_Decoded = TypeVar("_Decoded")
# What a body asks for; its texts have so many marks that stand for what can't be read.
DecodeMarked = Callable[[bytes, int], _Decoded]


class BodyDecoder:
    """Of one frontend. What looks for wrong values shares a slice of time."""

    def __init__(self) -> None:
        self._time_slice = SharedSlice()

    async def decoded(
        self, body: bytes, decode: Callable[[bytes], _Decoded], decode_marked: DecodeMarked[_Decoded] | None
    ) -> _Decoded:
        """What `decode` makes of JSON, or `decode_marked` if it has wrong texts. Raises MalformedBody, and what the two
        raise."""
        try:
            if len(body) > LARGE_BYTES:
                await check_large(body)
            return decode(body)
        except MalformedBody as error:
            return await self._without_wrong_values(body, decode, error, decode_marked)

    async def _without_wrong_values(
        self,
        body: bytes,
        decode: Callable[[bytes], _Decoded],
        refused: MalformedBody,
        decode_marked: DecodeMarked[_Decoded] | None,
    ) -> _Decoded:
        """What is made of a body that was refused. Raises RequestError, if it can with the place of a value."""
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
        if decode_marked is None or not all(body.startswith(b'"', value.start) for value in wrong):
            raise named
        try:
            return decode_marked(marked(body, wrong, _MARK), len(wrong))
        except RequestError:
            raise named from None

    async def _wrong_values(self, body: bytes) -> list[Value]:
        """At most one more than may fail alone. Lets other requests run meanwhile."""
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
