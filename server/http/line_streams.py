"""Bodies of lines without end: read in groups, and answered line by line and in order, while more of them comes.

So millions of texts take constant memory. Lines that come together and ask for the same are embedded together; each
group is reported like a request.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from server.dialects.answers import Headers
from server.dialects.lines import Line, body_of, check_lines, error_line, last_line, read_line, row_lines
from server.dialects.reading.json_body import BOM, LARGE_BYTES, check_large, check_utf_8
from server.dialects.route import Call, Route
from server.dialects.row_answers import Container, Ranges
from server.http.body import ClientLeft, Message, Receive, RequestBodies, Send, decoded_bytes, next_piece
from server.http.compression import coding_of
from server.http.request import LINES, SharedByRequests
from server.requests.errors import (
    ERRORS,
    BodyTooSlow,
    DeadlineExceeded,
    EmptyInput,
    InvalidRequest,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    RequestError,
    UnsupportedMedia,
    stopping,
)
from server.requests.limits import InOrder, SharedSlice
from server.requests.row_memory import SMALL_BYTES
from server.requests.work import CLIENT_LEFT, Embedded, EmbedRequest, RequestContext, Trace, failed
from wire.vocabulary import RequestClass

MAX_LINE_BYTES = 1 << 20
MAX_OPEN = 16  # groups whose answers have not left
_BLANK = re.compile(rb"\s*")
_UTF_8 = frozenset({b"utf-8", b"utf8"})
_MAX_GROUP_BYTES = 64 * 1024  # of more than one line
_MAX_LINES = 32  # of a group
_MAX_WAIT_SECONDS = 600.0  # of a group, for a server with too much work
_ENDING = (DeadlineExceeded, NotReady, Overloaded)  # no line is to blame for these


def check_head(headers: Mapping[bytes, bytes], http_version: str) -> None:
    """Raises UnsupportedMedia for the head of a request that has lines, and InvalidRequest for HTTP/1.0, which has no
    chunks."""
    if http_version == "1.0":
        raise InvalidRequest("bodies of lines need HTTP/1.1: the answer's length is not known when it begins")
    if coding_of(headers) is not None:
        raise UnsupportedMedia("a body of lines must not be compressed", param="content-encoding")
    for parameter in headers[b"content-type"].split(b";")[1:]:
        name, _, value = parameter.partition(b"=")
        if name.strip().lower() == b"charset" and value.strip(b' \t"').lower() not in _UTF_8:
            raise UnsupportedMedia("charset of a body of lines must be utf-8, or be left out", param="content-type")


class LineReader:
    """Reads the lines of one body. `is_stopping` says whether the server is; lines are taken out in slices of time.

    num_answered  groups whose answers have left; who reads says so. A client may wait for them before it sends more.
    """

    def __init__(
        self,
        receive: Receive,
        bodies: RequestBodies,
        *,
        max_lines: int,
        is_stopping: Callable[[], bool],
        time_slice: SharedSlice,
    ) -> None:
        self._receive = receive
        self._bodies = bodies
        self._max_lines = max_lines  # of a group
        self._is_stopping = is_stopping
        self._time_slice = time_slice
        self.num_answered = 0
        self._num_groups = 0  # that were given away
        self._piece, self._at = b"", 0  # the newest piece of the body, and where its next line begins
        self._rest = bytearray()  # the beginning of a line, from earlier pieces; never blank
        self._line: Line | None = None  # the next one: read, and in no group yet
        self._is_long = False  # the line after it is too long
        self._num_lines = 0
        self._is_over = False

    async def group(self) -> list[Line] | None:
        """The next lines with the same options that have come, at least one; None at the end.

        Lines that can't be read go with their neighbours. What is raised comes after the lines before it:
        PayloadTooLarge, MalformedBody, BodyTooSlow, ClientLeft, Overloaded and NotReady.
        """
        group, options, num_bytes = list[Line](), None, 0
        while len(group) < self._max_lines:
            if (line := await self._next(waits=not group)) is None:
                break
            if line.error is None:
                num_bytes += len(line.input)
                if options is not None and (line.options != options or num_bytes > _MAX_GROUP_BYTES):
                    break
                options = line.options
            group.append(line)
            self._line = None
        self._num_groups += bool(group)
        return group or None

    async def _next(self, *, waits: bool) -> Line | None:
        """The next line, which stays the next; None at the end, and unless it `waits` where none has come."""
        while self._line is None:
            await self._time_slice.end_if_over()
            data = b"" if self._is_long else self._next_whole()
            self._is_long = self._is_long or max(len(data), len(self._rest)) > MAX_LINE_BYTES
            if not waits and (self._is_long or not data):
                return None
            if self._is_long:
                raise PayloadTooLarge(f"a line has more than {MAX_LINE_BYTES} bytes")
            if data:
                self._line = read_line(data, self._num_lines)
                self._num_lines += 1
            elif self._is_over:
                return None
            else:
                await self._read_on()
        return self._line

    def _next_whole(self) -> bytes:
        """The part of the body that has come up to the end of the next line that is not blank; b"" if none has
        ended."""
        data = b""
        while not data and self._at <= len(self._piece):
            if not self._rest:
                self._at = _BLANK.match(self._piece, self._at).end()  # type: ignore[union-attr]  # it matches anything
            stop = self._piece.find(b"\n", self._at)
            if stop < 0 and not self._is_over:
                self._rest += self._piece[self._at :]
                self._piece, self._at = b"", 0
                break
            stop = stop if stop >= 0 else len(self._piece)
            data = bytes(self._rest) + self._piece[self._at : stop]
            self._rest.clear()
            self._at = stop + 1
            if not self._num_lines:
                check_utf_8(data)
                data = data.removeprefix(BOM)
            data = data.strip()
        return data

    async def _read_on(self) -> None:
        if self._is_stopping():
            raise stopping()
        await self._bodies.wait_for_room(len(self._rest))
        with self._bodies.held(len(self._rest)):
            message = await self._next_piece()
        self._is_over = not message.get("more_body", False)
        self._piece, self._at = message["body"], 0

    async def _next_piece(self) -> Message:
        """Slow is only who sends nothing although all that came has long been answered."""
        while True:
            before = self.num_answered
            try:
                return await next_piece(self._receive)
            except BodyTooSlow:
                if before == self.num_answered == self._num_groups:
                    raise


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
    """The streams of one frontend. Every group of lines has a trace. All streams share a slice of time."""

    shared: SharedByRequests
    time_slice: SharedSlice = field(default_factory=SharedSlice)

    async def answer(self, route: Route, call: Call, receive: Receive, send: Send, headers: Headers) -> None:
        """Answers the stream; `headers` are more of the answer's. Raises what fails before the answer has begun; later
        that is its last line."""
        given = call.options.request_class
        own = replace(call.options, accepts=Container.JSON, request_class=RequestClass.BULK if given is None else given)
        call, has_begun = replace(call, options=own), False
        reader = LineReader(
            receive,
            self.shared.bodies.of(call.context.key),
            max_lines=_lines_together(call),
            is_stopping=lambda: self.shared.state.draining,
            time_slice=self.time_slice,
        )

        async def work(lines: list[Line]) -> list[_Done]:
            with self.shared.bodies.of(call.context.key).held(sum(map(_num_held, lines))):
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
        """Embeds lines together. Those that fail, and all if nothing else is known, are tried alone: that shows their
        own errors.

        Lines that can't be read are not tried. Raises what ends the answer.
        """
        found, alone = list[_Done](), [line for line in lines if line.error is None]
        try:
            if len(alone) < len(lines):
                found.append(_unread(call, [line for line in lines if line.error is not None]))
            if len(alone) > 1:
                done = await self._embed_together(route, call, alone)
                if done.embedded is not None:
                    found.append(done)
                    alone = [alone[place] for place in sorted(done.embedded.failed or ())]
            for line in alone:
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
            own = replace(call, trace=trace, context=RequestContext(call.context.key))
            try:
                work, embedded = await self._once(route, own, lines)
                return _Done(trace, _without_inputs(lines), own, work.ranges, embedded)
            except asyncio.CancelledError:
                self._report([_Done(trace, lines, own)])
                raise
            except Overloaded as error:
                wait = error.retry_after or ERRORS[Overloaded].retry_after
                if time.monotonic() + wait >= gives_up:
                    raise
            except Exception as error:
                own.context.release()
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
        call.trace.encoding = call.context.encoding = call.form.label
        return work, await route.stages.run(self.shared.pipeline, work, call.trace)

    def _report(self, group: Sequence[_Done]) -> None:
        """Report the traces of a group. Those without a status have lost their client."""
        for done in group:
            trace = done.trace
            done.call.context.release()
            trace.status = trace.status or CLIENT_LEFT
            trace.end()
            self.shared.finished(trace)


def _trace_of(stream: Trace) -> Trace:
    """A trace for a group of lines."""
    return Trace(stream.method, stream.route, stream.request_id, key=stream.key)


def _num_held(line: Line) -> int:
    """Bytes until it is embedded: as it was read, in a body, and as a text."""
    return 2 * (len(line.input) + len(line.options)) + decoded_bytes(line.input)


def _without_inputs(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines without inputs, for their answers, which a client may not read."""
    return [replace(line, input=b"", options=b"") for line in lines]


def _unread(call: Call, lines: Sequence[Line]) -> _Done:
    """Lines that all have an error of their own; the first one's stands for them in the log."""
    trace = _trace_of(call.trace)
    first = lines[0].error
    assert first is not None
    return _Done(
        trace, lines, replace(call, trace=trace, context=RequestContext(call.context.key)), error=_known(first, trace)
    )


def _lines_together(call: Call) -> int:
    """The number of lines whose rows are so small that they need not wait for room: who waited could wait for a group
    behind it."""
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
    known = failed(error, trace)
    known.__context__ = None
    return known.with_traceback(None)
