"""What an RPC brings, and what goes back beside its answers: metadata, deadline, messages as bytes."""

import asyncio
import contextlib
import math
import time

from grpc.aio import EOF, ServicerContext

from server.dialects.tei.shared import timing_headers
from server.requests.admission.open_requests import GAVE_WAY, OpenRequest, gave_way
from server.requests.errors import BodyTooSlow
from server.requests.trace import Trace


async def next_message(context: ServicerContext, seconds: float, waiting: OpenRequest | None = None) -> bytes | None:
    """None at the end; `waiting` takes no place meanwhile. Raises BodyTooSlow, and Overloaded where it gives way."""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            with contextlib.nullcontext() if waiting is None else waiting.waiting_for_body(clock):
                data = await context.read()
    except TimeoutError:
        if clock.when() == GAVE_WAY:
            raise gave_way() from None
        raise BodyTooSlow(f"no message came for {seconds:g} seconds") from None
    return None if data is EOF else data


def headers_of(context: ServicerContext) -> dict[bytes, bytes]:
    """The client's metadata as HTTP has it; names are in lower case, and binary values no header of ours."""
    given = context.invocation_metadata() or ()
    return {name.encode(): value.encode() for name, value in given if isinstance(value, str)}


def deadline_of(context: ServicerContext) -> float:
    """In time.monotonic() seconds, infinite without one."""
    seconds = context.time_remaining()
    return math.inf if seconds is None else time.monotonic() + seconds


def initial_metadata(trace: Trace) -> tuple[tuple[str, str], ...]:
    """TEI's headers, how many texts were cut, and the id by which the log has the request."""
    own = [*timing_headers(trace), (b"x-embedline-truncated-inputs", b"%d" % trace.num_truncated)]
    return (*((name.decode(), value.decode()) for name, value in own), ("x-request-id", trace.request_id))
