"""Answers bodies of lines line by line and in order, while more of them comes: millions of texts in constant memory.

Lines that come together and ask for the same are embedded together; each group is reported like a request.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from server.dialects.openai import Line, body_of, check_lines, error_line, last_line, row_lines
from server.dialects.reading.json_body import LARGE_BYTES, check_large
from server.dialects.route import Call, Headers, Route
from server.dialects.writing.forms import Container, Ranges
from server.http.bodies.lines import LINES, LineReader
from server.http.body import BodyReader, ClientLeft, Receive, Send, decoded_bytes
from server.requests.admission.room import SMALL_BYTES
from server.requests.errors import (
    ERRORS,
    DeadlineExceeded,
    EmptyInput,
    EngineFailed,
    NotReady,
    Overloaded,
    RequestError,
)
from server.requests.in_order import InOrder
from server.requests.models import ServerState
from server.requests.pipeline import Pipeline
from server.requests.time_slices import SharedSlice
from server.requests.trace import Trace
from server.requests.work import Embedded, EmbedRequest
from wire.vocabulary import RequestClass

MAX_OPEN = 16  # groups whose answers have not left
_MAX_LINES = 32  # of a group
_MAX_WAIT_SECONDS = 600.0  # of a group, for a server with too much work
_CLIENT_LEFT = 499
_ENDING = (DeadlineExceeded, NotReady, Overloaded)  # no line is to blame for these

logger = logging.getLogger("embedline.server")


@dataclass(frozen=True, slots=True)
class _Done:
    """Lines that were embedded together, or one that was not."""

    trace: Trace
    lines: Sequence[Line]
    call: Call
    ranges: Ranges | None = None
    embedded: Embedded | None = None
    error: RequestError | None = None  # of all lines that have none of their own

    def written(self) -> dict[int, bytes]:
        """Answers by the lines' indices."""
        error = self.error
        if self.embedded is not None:
            try:
                rows = row_lines(self.lines, self.ranges, self.embedded, self.call.form)
                return {line.index: row for line, row in zip(self.lines, rows, strict=True)}
            except RequestError as raised:  # rows that can't be written as was asked for
                error = _known(raised, self.trace)
        assert error is not None
        return {line.index: error_line(line, line.error or error) for line in self.lines}


@dataclass(frozen=True, slots=True)
class LineStreams:
    """Of one frontend. `finished` gets the trace of every group. All streams share a slice of time."""

    state: ServerState
    pipeline: Pipeline
    bodies: BodyReader
    finished: Callable[[Trace], None]
    time_slice: SharedSlice = field(default_factory=SharedSlice)

    async def answer(self, route: Route, call: Call, receive: Receive, send: Send, headers: Headers) -> None:
        """`headers` are more of the answer's. Raises what fails before the answer has begun; later that is its last
        line."""
        given = call.options.request_class
        own = replace(call.options, accepts=Container.JSON, request_class=RequestClass.BULK if given is None else given)
        call, has_begun = replace(call, options=own), False
        reader = LineReader(
            receive,
            self.bodies.of(call.trace.key),
            max_lines=_lines_together(call),
            is_stopping=lambda: self.state.draining,
            time_slice=self.time_slice,
        )

        async def work(lines: list[Line]) -> list[_Done]:
            with self.bodies.of(call.trace.key).held(sum(map(_num_held, lines))):
                return await self._embed(route, call, lines)

        try:
            async with InOrder(reader.group, work, max_open=MAX_OPEN, dropped=self._report) as groups:
                while (group := await groups.next()) is not None:
                    await self.time_slice.end_if_over()
                    content = _written(group)
                    if not has_begun:
                        start = [(b"content-type", LINES), *headers]
                        await send({"type": "http.response.start", "status": 200, "headers": start})
                        has_begun = True
                    await send({"type": "http.response.body", "body": content, "more_body": True})
                    reader.num_answered += 1
                    for done in group:
                        done.trace.status = done.trace.status or 200
                    self._report(group)
            if not has_begun:
                raise EmptyInput("the body has no lines")
        except (asyncio.CancelledError, ClientLeft):
            if not has_begun:
                raise
            return  # the answer is not whole, so the connection is closed
        except Exception as error:
            if not has_begun:
                raise
            end = last_line(_known(error, call.trace))
            self._report([_Done(call.trace, (), call)])
            await send({"type": "http.response.body", "body": end, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _embed(self, route: Route, call: Call, lines: list[Line]) -> list[_Done]:
        """Together. Those that fail, and all if nothing else is known, are tried alone: that shows their own errors.

        Lines that can't be read are not tried. Raises what ends the answer.
        """
        found, failed = list[_Done](), [line for line in lines if line.error is None]
        try:
            if len(failed) < len(lines):
                found.append(_unread(call, [line for line in lines if line.error is not None]))
            if len(failed) > 1:
                done = await self._embed_together(route, call, failed)
                if done.embedded is not None:
                    found.append(done)
                    failed = [failed[place] for place in sorted(done.embedded.failed or ())]
            for line in failed:
                await self.time_slice.end_if_over()
                found.append(await self._embed_together(route, call, [line]))
        except BaseException:
            self._report(found)
            raise
        return found

    async def _embed_together(self, route: Route, call: Call, lines: list[Line]) -> _Done:
        """Raises what ends the answer. Waits where there is too much work: the client waits too."""
        gives_up = min(call.options.deadline, time.monotonic() + _MAX_WAIT_SECONDS)
        while True:
            trace = _trace_of(call.trace)
            own = replace(call, trace=trace)
            try:
                work, embedded = await self._once(route, own, lines)
                return _Done(trace, _without_inputs(lines), own, work.ranges, embedded)
            except asyncio.CancelledError:
                self._report([_Done(trace, lines, own)])
                raise
            except Overloaded as error:
                wait = error.retry_after or 1.0
                if time.monotonic() + wait >= gives_up:
                    raise
            except Exception as error:
                trace.release()
                if isinstance(error, _ENDING):
                    raise
                return _Done(trace, _without_inputs(lines), own, error=_known(error, trace))
            await asyncio.sleep(wait)

    async def _once(self, route: Route, call: Call, lines: list[Line]) -> tuple[EmbedRequest, Embedded]:
        """Raises RequestError."""
        body = body_of(lines)
        call.trace.num_body_bytes = len(body)
        if len(body) > LARGE_BYTES:
            await check_large(body)
        work = route.decode(call, body)
        check_lines(lines, work, call.form)
        if call.form is not None:
            call.trace.encoding = call.form.label
        return work, await route.run(self.pipeline, work, call.trace)

    def _report(self, group: Sequence[_Done]) -> None:
        """Those without a status have lost their client."""
        for done in group:
            trace = done.trace
            trace.release()
            trace.status = trace.status or _CLIENT_LEFT
            trace.end()
            self.finished(trace)


def _trace_of(stream: Trace) -> Trace:
    """Of a group."""
    return Trace(stream.method, stream.route, stream.request_id, key=stream.key)


def _num_held(line: Line) -> int:
    """Bytes until it is embedded: as it was read, in a body, and as a text."""
    return 2 * (len(line.input) + len(line.options)) + decoded_bytes(line.input)


def _without_inputs(lines: Sequence[Line]) -> Sequence[Line]:
    """For their answers, which a client may not read."""
    return [replace(line, input=b"", options=b"") for line in lines]


def _unread(call: Call, lines: Sequence[Line]) -> _Done:
    """Lines that all have an error of their own; the first one's stands for them in the log."""
    trace = _trace_of(call.trace)
    first = lines[0].error
    assert first is not None
    return _Done(trace, lines, replace(call, trace=trace), error=_known(first, trace))


def _lines_together(call: Call) -> int:
    """As many as have rows so small that they need not wait for room: who waited could wait for a group behind it."""
    row_bytes = 4 * max((model.dimensions for model in call.models.models), default=1)
    return max(1, min(_MAX_LINES, call.max_items, SMALL_BYTES // row_bytes))


def _written(group: Sequence[_Done]) -> bytes:
    """The answers in the order of the lines."""
    answers = dict[int, bytes]()
    for done in group:
        own = done.written()
        done.trace.num_bytes = sum(map(len, own.values()))
        answers |= own  # of a line that was tried alone, the later one
    return b"".join(answers[index] for index in sorted(answers))


def _known(error: Exception, trace: Trace) -> RequestError:
    """The error as clients may see it, which keeps no frame alive; the trace says why."""
    if not isinstance(error, RequestError):
        logger.error("request %s failed because of a bug", trace.request_id, exc_info=error)
        error = EngineFailed("the server failed on this request")
    trace.status, trace.error, trace.reason = ERRORS[type(error)].status, type(error).__name__, error.reason
    error.__context__ = None
    return error.with_traceback(None)
