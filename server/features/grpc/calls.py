"""The RPCs of one frontend that compute: each comes here, and each message is reported like a request over HTTP.

The library sees all methods as streams in both directions, which is the same on the wire. So the key is checked before
the message has come, and a message that does not come is not waited for without end. Errors have the codes of
text-embeddings-inference where it has the error, else the usual ones:
https://github.com/huggingface/text-embeddings-inference, router/src/grpc/server.rs
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from grpc import StatusCode
from grpc.aio import EOF, ServicerContext

from server.dialects.reading.inputs import check_num_items
from server.dialects.route import Call
from server.dialects.tei import tei_error, tei_message, timing_headers
from server.features.grpc.method import Method, Reads
from server.http.body import RequestBodies, decoded_bytes, to_hold
from server.http.request import SharedByRequests, read_options, request_id, request_ids
from server.requests import errors
from server.requests.errors import BodyTooSlow, DeadlineExceeded, EmptyInput, RequestError, stopping
from server.requests.limits import GAVE_WAY, InOrder, OpenRequest, SharedSlice, gave_way
from server.requests.row_memory import SMALL_BYTES
from server.requests.work import CLIENT_LEFT, RequestContext, Trace, failed
from wire.vocabulary import RequestClass

# fmt: off
CODES: dict[type[RequestError], StatusCode] = {
    errors.InvalidRequest:   StatusCode.INVALID_ARGUMENT,
    errors.EmptyInput:       StatusCode.INVALID_ARGUMENT,
    errors.MalformedBody:    StatusCode.INVALID_ARGUMENT,
    errors.NotTokenizable:   StatusCode.FAILED_PRECONDITION,
    errors.UnsupportedTask:  StatusCode.FAILED_PRECONDITION,
    errors.Unauthorized:     StatusCode.UNAUTHENTICATED,
    errors.ModelNotFound:    StatusCode.NOT_FOUND,
    errors.BodyTooSlow:      StatusCode.DEADLINE_EXCEEDED,
    errors.PayloadTooLarge:  StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded:       StatusCode.RESOURCE_EXHAUSTED,
    errors.EngineFailed:     StatusCode.FAILED_PRECONDITION,
    errors.NotReady:         StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
}
# fmt: on
_PUSHBACK = "grpc-retry-pushback-ms"  # what clients that retry by themselves wait
_MODEL = b"x-embedline-model"  # the messages have no field for it
_MESSAGE_SECONDS = 30.0  # for the next message where nothing is computed meanwhile
# It is longer in a stream whose messages are answered one by one: its client may wait for answers before it sends more.
_PAUSE_SECONDS = 600.0
MAX_OPEN = 512  # messages of a stream whose answers have not left; enough for several batches of short texts
ROW_BYTES = 1 << 20  # of the rows of such messages, and of the answers with them: who does not read keeps no more
# Rows of tokens, and the answers with them, of such messages. Memory is granted to whoever comes first: with more,
# later messages could hold all of it while the first one, whose answer must leave before theirs, waits for some.
TOKEN_ROW_BYTES = 4 << 20

Handler = Callable[[object, ServicerContext], Awaitable[None]]


class Refusal(NamedTuple):
    """The status of an RPC that failed, as the library's `abort` takes it."""

    code: StatusCode
    message: str
    trailers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Done:
    """The outcome of a message."""

    trace: Trace
    context: RequestContext
    answer: bytes
    refusal: Refusal | None  # instead of the answer


class _Reading(NamedTuple):
    """A request whose messages come; `held` counts their bytes."""

    trace: Trace
    key: str  # the name of the API key
    opened: OpenRequest
    held: contextlib.ExitStack


class Calls:
    """Answers RPCs, and reports every message that was answered or refused, or whose client left."""

    def __init__(self, shared: SharedByRequests) -> None:
        self._shared = shared
        self._admission = shared.admission
        self._request_ids = request_ids()
        self._streams = set[InOrder[bytes, _Done]]()
        self._is_stopping = False
        self._slices = SharedSlice()  # in which messages of all streams begin, so that other requests run in between

    def handler(self, method: Method) -> Handler:
        """The handler that the library calls for each RPC of the method."""
        return partial(self._each if method.reads is Reads.EACH else self._once, method)

    def stop_reading(self) -> None:
        """Open streams end once what they have sent is answered."""
        self._is_stopping = True
        for stream in self._streams:
            stream.cut()

    async def _once(self, method: Method, _: object, context: ServicerContext) -> None:
        """One answer to one message, or to all of them."""
        headers = headers_of(context)
        refused: Refusal | None = None
        opened, own = OpenRequest(self._admission.requests), RequestContext()
        with opened, self._reported(self._new_trace(method, headers), own) as trace:
            deadline = deadline_of(context)
            try:
                call = self._new_call(headers, deadline, trace, own, opened)
                with contextlib.ExitStack() as held:
                    # no name here is the message's: a refusal keeps this frame until the garbage is collected
                    reading = _Reading(trace, own.key, opened, held)
                    answer = await self._answer(method, call, await self._read(method, context, reading))
                opened.end_work()
                await context.send_initial_metadata(initial_metadata(trace))
                with self._admission.unread.one_of(own.key):
                    await context.write(answer)
                trace.status = 200
            except asyncio.CancelledError:
                self._interrupted(trace, deadline)
                raise
            except Exception as error:
                if context.done():
                    self._interrupted(trace, deadline)
                    return
                refused = _failed(error, trace)
        if refused is not None:
            await context.abort(*refused)

    async def _each(self, method: Method, _: object, context: ServicerContext) -> None:
        """An answer to each message, until one of them fails."""
        headers = headers_of(context)
        with OpenRequest(self._admission.streams) as opened:
            trace, deadline = self._new_trace(method, headers), deadline_of(context)
            try:
                call = self._new_call(headers, deadline, trace, RequestContext(), opened)
                if call.options.request_class is None:
                    call.options = replace(call.options, request_class=RequestClass.BULK)
                refused = await self._answer_stream(method, call, context)
            except Exception as error:  # of the stream; those of its messages are reported with them
                if context.done():
                    return
                with self._reported(trace, RequestContext()):
                    refused = _failed(error, trace)
        if refused is not None:
            await context.abort(*refused)

    async def _answer_stream(self, method: Method, call: Call, context: ServicerContext) -> Refusal | None:
        """The status that it ends with, None for the good end. Raises RequestError."""

        async def read() -> bytes | None:
            await self._slices.end_if_over()
            return await next_message(context, _PAUSE_SECONDS)

        work = partial(self._answer_one, method, call)
        async with InOrder(read, work, max_open=_max_open(method, call), dropped=self._drop) as stream:
            self._streams.add(stream)
            if self._is_stopping:  # it was on its way
                stream.cut()
            try:
                while (done := await stream.next()) is not None:
                    with self._reported(done.trace, done.context):
                        if done.refusal is not None:
                            return done.refusal
                        await context.write(done.answer)
                        done.trace.status = 200
            finally:
                self._streams.discard(stream)
            if stream.was_cut:
                raise stopping()
        return None

    async def _answer_one(self, method: Method, call: Call, message: bytes) -> _Done:
        """Answers one message of a stream. Whoever gets the outcome reports it."""
        stream, context = call.trace, RequestContext(call.context.key)
        trace = Trace(stream.method, stream.route, stream.request_id, key=stream.key)
        trace.num_body_bytes = len(message)
        try:
            with _held(self._shared.bodies.of(context.key), message, before=SMALL_BYTES):
                parsed = [method.parsed(message, self._shared.max_items)]
                del message
                answer = await self._answer(method, replace(call, trace=trace, context=context), parsed.pop())
            return _Done(trace, context, answer, None)
        except asyncio.CancelledError:
            with self._reported(trace, context):
                self._interrupted(trace, call.options.deadline)
            raise
        except Exception as error:
            return _Done(trace, context, b"", _failed(error, trace))

    def _drop(self, done: _Done) -> None:
        """The stream has ended before this answer could leave."""
        with self._reported(done.trace, done.context):
            self._interrupted(done.trace, math.inf)

    async def _answer(self, method: Method, call: Call, message: Any) -> bytes:
        """Raises RequestError."""
        trace, context = call.trace, call.context
        work = method.decode(call, message)
        del message  # the request has copies of its texts
        trace.encoding = context.encoding = call.form.label
        result = await method.run(self._shared.pipeline, work, trace)
        answer = await method.encode(call, work, result)
        trace.num_bytes = len(answer)
        context.hold_answer(self._admission.row_memory_of(context.request_class), to_hold(len(answer)))
        return answer

    async def _read(self, method: Method, context: ServicerContext, reading: "_Reading") -> Any:
        """The message, or a list of all of them. Raises RequestError."""
        trace, bodies = reading.trace, self._shared.bodies.of(reading.key)
        began, messages, num_bytes = time.perf_counter(), list[Any](), 0
        while (data := await next_message(context, _MESSAGE_SECONDS, reading.opened)) is not None:
            reading.held.enter_context(_held(bodies, data, before=num_bytes))
            num_bytes += len(data)
            trace.num_body_bytes = num_bytes
            messages.append(method.parsed(data, self._shared.max_items))
            if method.reads is Reads.ONE:
                break
            check_num_items(len(messages), "the stream", max_items=self._shared.max_items)
        if not messages:
            raise EmptyInput("no message came", param="stream")
        reading.opened.let_in(reading.key)  # others were, while it waited
        trace.read_seconds = time.perf_counter() - began
        return messages[0] if method.reads is Reads.ONE else messages

    def _new_trace(self, method: Method, headers: Mapping[bytes, bytes]) -> Trace:
        return Trace("POST", method.path, request_id(headers) or next(self._request_ids))

    def _new_call(
        self,
        headers: Mapping[bytes, bytes],
        deadline: float,
        trace: Trace,
        context: RequestContext,
        opened: OpenRequest,
    ) -> Call:
        """Raises RequestError."""
        trace.key = context.key = self._shared.keys.check(trace.method, trace.route, headers)
        opened.let_in(context.key)
        self._admission.unread.check(context.key)
        models, options = self._shared.state.models_or_not_ready(), read_options(headers)
        if (name := headers.get(_MODEL)) is not None:
            models = models.named(name.decode("latin-1"))
        options = replace(options, deadline=min(deadline, options.deadline))
        state, max_items = self._shared.state, self._shared.max_items
        return Call(state, max_items, trace, tei_error, context, options, models)

    def _interrupted(self, trace: Trace, deadline: float) -> None:
        """Note in the trace that nobody waits for the answer any more."""
        if time.monotonic() >= deadline:
            failed(DeadlineExceeded("the request's deadline passed"), trace)
        elif self._shared.state.draining:
            failed(stopping(), trace)
        else:
            trace.client_left()

    @contextlib.contextmanager
    def _reported(self, trace: Trace, context: RequestContext) -> Iterator[Trace]:
        """Report it when the block ends."""
        try:
            yield trace
        finally:
            context.release()
            trace.status = trace.status or CLIENT_LEFT
            trace.end()
            self._shared.finished(trace)


async def next_message(context: ServicerContext, seconds: float, waiting: OpenRequest | None = None) -> bytes | None:
    """Returns None at the end; `waiting` takes no place meanwhile. Raises BodyTooSlow, and Overloaded where it gives
    way."""
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
    """The RPC's deadline in time.monotonic() seconds, infinite without one."""
    seconds = context.time_remaining()
    return math.inf if seconds is None else time.monotonic() + seconds


def initial_metadata(trace: Trace) -> tuple[tuple[str, str], ...]:
    """TEI's headers, how many texts were cut, and the id by which the log has the request."""
    own = [*timing_headers(trace), (b"x-embedline-truncated-inputs", b"%d" % trace.num_truncated)]
    return (*((name.decode(), value.decode()) for name, value in own), ("x-request-id", trace.request_id))


def _held(bodies: RequestBodies, data: bytes, *, before: int = 0) -> contextlib.AbstractContextManager[None]:
    """Counts a message as what its texts take. Raises Overloaded, unless it is small with what came `before` it."""
    num_bytes = decoded_bytes(data)
    bodies.check(before + num_bytes, held=before)
    return bodies.held(num_bytes)


def _max_open(method: Method, call: Call) -> int:
    """The most messages of a stream that are open. Raises RequestError."""
    model = call.models.choose(None, with_prompt=True)
    if not method.has_token_rows:
        return max(1, min(MAX_OPEN, ROW_BYTES // (2 * 4 * model.dimensions)))
    row_bytes = 4 * model.max_seqlen * (model.token_dimensions or model.dimensions)
    return max(1, min(MAX_OPEN, TOKEN_ROW_BYTES // (2 * row_bytes)))


def _failed(error: Exception, trace: Trace) -> Refusal:
    """The status of what failed; the trace says why."""
    return refusal(failed(error, trace), trace.request_id)


def refusal(error: RequestError, request_id: str) -> Refusal:
    """The status for an error."""
    trailers = [("x-request-id", request_id)]
    if error.retry_after is not None:
        trailers.append((_PUSHBACK, str(max(1, round(1000 * error.retry_after)))))
    return Refusal(CODES[type(error)], tei_message(error), tuple(trailers))
