"""The ASGI application of a frontend: every request comes here, and POST routes are answered here.

POST routes are found in a small table of paths in front of FastAPI, because a FastAPI handler costs some 250 µs more
for each request (docs/decisions/0003-hot-path.md). FastAPI answers everything else.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from fastapi import FastAPI

from server.dialects.error_shapes import openai_error
from server.dialects.route import Answer, Call, ErrorShape, Headers, Route
from server.dialects.table import ROUTES, plain_error_shape
from server.http import compression
from server.http.body import (
    IS_HEAD,
    OWNER,
    STOPPING,
    WHOLE_BODY,
    WRITE_BUFFER_BYTES,
    ClientLeft,
    Message,
    Receive,
    Scope,
    Send,
    TimedReceive,
    to_hold,
)
from server.http.headers import rate_limit_headers, read_options, request_id, request_ids
from server.http.hosts import Hosts
from server.http.line_streams import LineStreams, check_head, has_lines
from server.http.paths import Paths, Place
from server.http.request import BodyDecoder, HttpRequest, PassedOn, PassOn, SharedByRequests
from server.requests.concurrency import OpenRequest
from server.requests.errors import Forbidden, NotReady, RequestError, Unauthorized, stopping
from server.requests.row_memory import RequestContext, RowMemory
from server.requests.trace import CLIENT_LEFT, Trace, failed
from wire.vocabulary import RequestClass

_PIECE_BYTES = 256 * 1024


class App:
    """Answers requests, and reports each one when it has ended.

    fallback   answers what is not in the table of POST routes
    has_documents_in_objects  whether rerank's results have documents as {"text": …} or as texts
    url_prefix  may stand before every path; as server.http.paths has it
    passed_on  routes whose requests go on to another process
    compress_answers  whether answers in JSON are compressed for clients that accept it
    """

    def __init__(
        self,
        shared: SharedByRequests,
        *,
        has_documents_in_objects: bool,
        compress_answers: bool,
        hosts: Hosts,
        fallback: FastAPI,
        passed_on: Sequence[PassedOn] = (),
        url_prefix: str = "",
    ) -> None:
        self._shared = shared
        self._admission = shared.admission
        self._has_documents_in_objects = has_documents_in_objects
        self._compress_answers = compress_answers
        self._hosts = hosts
        self._fallback = fallback
        self._passed_on = passed_on
        self._routes = {("POST", route.path): route for route in ROUTES}
        # a label of the metrics, so there may be only as many as there are routes
        self._names = {getattr(route, "path", "") for route in fallback.routes} | {route.path for route in ROUTES}
        self._paths = Paths(self._names, url_prefix=url_prefix)
        self._lines = LineStreams(shared)
        self._decoder = BodyDecoder()
        self._request_ids = request_ids()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers = dict(scope["headers"])
        method, path = scope["method"], scope["path"]
        route, place = self._routes.get((method, path)), None
        if route is None:
            place = self._paths.find(path)
            path = place.path
            route = self._routes.get((method, path))
        trace = Trace(method, path if path in self._names else "other", request_id(headers) or next(self._request_ids))
        context, is_streamed, whole = RequestContext(), False, scope.get(WHOLE_BODY)
        try:
            with OpenRequest(self._admission.requests) as opened:
                timed = TimedReceive(receive, opened, is_whole=whole is not None)
                request = HttpRequest(scope, timed, send, headers, trace, opened, self._decoder, context, place, whole)
                if route is None:
                    assert place is not None
                    await self._answer_other(request, place)
                else:
                    trace.route = route.path
                    answer = await self._answer(route, request)
                    is_streamed = answer is None
                    if answer is not None:
                        await self._send(request, answer)
        except ClientLeft:
            pass
        finally:
            context.release()
            trace.status = trace.status or CLIENT_LEFT  # it left while FastAPI was answering
            trace.end()
            if not is_streamed:  # the groups of its lines have been reported
                self._shared.finished(trace)

    def refused(self, error: RequestError) -> None:
        """Report what never became a request: its head was too long or too slow, or it was not HTTP."""
        trace = Trace(route="other", request_id=next(self._request_ids))
        failed(error, trace)
        self._shared.finished(trace)

    async def _answer(self, route: Route, request: HttpRequest) -> Answer | None:
        """The answer of a POST route, or an error in the shape of its dialect. None if it was sent line by line."""
        trace, context, call = request.trace, request.context, None
        try:
            self._check_sender(request, trace.route)
            call = self._new_call(route, request)
            if route.takes_lines and has_lines(request.headers):
                await self._answer_lines(route, call, request)
                return None
            request.open.let_in(context.key)
            bodies, decode = self._shared.bodies.of(context.key), partial(route.decode, call)
            work = await request.read(bodies, lambda body: self._decoder.decoded(body, decode))
            with bodies.held(request.num_decoded_bytes):  # the decoder has copied what it needs
                trace.encoding = context.encoding = call.form.label
                result = await route.run(self._shared.pipeline, work, trace)
                answer = await route.encode(call, work, result)
                if self._compress_answers:
                    answer = await compression.compressed(answer, request.headers.get(b"accept-encoding", b""))
            context.hold_answer(self._admission.row_memory_of(context.request_class), to_hold(len(answer.body)))
            return answer
        except (Exception, asyncio.CancelledError) as error:
            return _failed(error, trace, call.error_shape if call else route.error_shape)

    def _check_sender(self, request: HttpRequest, path: str) -> None:
        """Raises Forbidden and Unauthorized."""
        trace = request.trace
        self._hosts.check(trace.method, path, request.headers)
        trace.key = request.context.key = self._shared.keys.check(trace.method, path, request.headers)

    def _new_call(self, route: Route, request: HttpRequest) -> Call:
        """Raises RequestError."""
        models, options = self._shared.state.models_or_not_ready(), read_options(request.headers)
        if request.place is not None and request.place.model is not None:
            models = models.named(request.place.model)
        are_objects = self._has_documents_in_objects
        return Call(
            options,
            models,
            self._shared.max_items,
            request.trace,
            route.error_shape,
            request.context,
            has_documents_in_objects=are_objects,
        )

    async def _answer_lines(self, route: Route, call: Call, request: HttpRequest) -> None:
        """Raises what fails before the answer has begun."""
        with OpenRequest(self._admission.streams) as stream:
            stream.let_in(request.context.key)
            check_head(request.headers, request.scope.get("http_version", "1.1"))
            more = self._more_headers(request)
            await self._lines.answer(route, call, request.receive.of_stream, request.send, more)

    async def _answer_other(self, request: HttpRequest, place: Place) -> None:
        """Answers a request for a route of another process, or of FastAPI."""
        for one in self._passed_on:
            if (answer := one.at(request.trace.method, place.path)) is not None:
                request.trace.route = one.route
                await self._send(request, await self._answer_of(request, answer))
                return
        await self._fall_back(request, place)

    async def _answer_of(self, request: HttpRequest, answer: PassOn) -> Answer:
        """The answer of another process: that it has kept the request, or what it made of it."""
        trace, context = request.trace, request.context
        try:
            self._check_sender(request, trace.route)
            request.open.let_in(context.key)
            owner, held = self._shared.keys.owner(context.key), contextlib.ExitStack()
            with held:
                read = request.holding(self._shared.bodies.of(context.key), held)
                found = await answer(read, request.scope["headers"], owner)
            context.hold_answer(self._admission.row_memory_of(context.request_class), to_hold(len(found.body)))
            return found
        except (Exception, asyncio.CancelledError) as error:
            return _failed(error, trace, openai_error)

    async def _fall_back(self, request: HttpRequest, place: Place) -> None:
        """Answer with what FastAPI answers."""
        trace = request.trace
        try:
            self._check_sender(request, place.path)
        except (Forbidden, Unauthorized) as error:
            return await self._send(request, _failed(error, trace, plain_error_shape(place.path)))
        scope = {
            **request.scope,
            OWNER: self._shared.keys.owner(request.context.key),
            IS_HEAD: trace.method == "HEAD",
            "method": "GET" if trace.method == "HEAD" else trace.method,  # the HTTP protocol leaves out the body
            "path": place.prefix + place.path,
            "root_path": place.prefix,
        }
        send = HeldSend(request.send, trace, request.context, self._admission.row_memory_of(RequestClass.BULK))
        try:
            await self._fallback(scope, request.receive, send)
        except Exception:
            if send.refused is None:
                raise
            await self._send(request, _failed(send.refused, trace, plain_error_shape(place.path)))
        finally:
            if (route := scope.get("route")) is not None:  # whose path has names where this request's has ids
                trace.route = route.path

    async def _send(self, request: HttpRequest, answer: Answer) -> None:
        request.open.end_work()
        trace, headers = request.trace, answer.headers
        trace.status, trace.num_bytes = answer.status, len(answer.body)
        headers.append((b"content-length", b"%d" % len(answer.body)))
        headers += self._more_headers(request)
        if trace.are_ids_decoded:
            headers.append((b"x-embedline-token-ids", b"cl100k"))
        if trace.has_joined:
            headers.append((b"x-embedline-joined", b"1"))
        try:
            await send_answer(request.send, answer)
        except asyncio.CancelledError:  # the client left, or was cut off because it did not read
            trace.client_left()
            raise

    def _more_headers(self, request: HttpRequest) -> Headers:
        """The headers of every answer."""
        headers, key = [(b"x-request-id", request.trace.request_id.encode())], request.context.key
        if key and (allowance := self._admission.allowance(key)) is not None:
            headers += rate_limit_headers(allowance)
        return headers


def _failed(error: Exception | asyncio.CancelledError, trace: Trace, shape: ErrorShape) -> Answer:
    """The answer to a request that failed; the trace says why. Raises the error if the client left: nobody gets an
    answer."""
    if isinstance(error, asyncio.CancelledError) and error.args == (STOPPING,):
        error = stopping()
    if isinstance(error, (ClientLeft, asyncio.CancelledError)):
        trace.client_left()
        raise error
    return shape(failed(error, trace))


async def send_answer(send: Send, answer: Answer) -> None:
    """A whole answer. Returns when at most a buffer's worth of a large one still has to leave."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    if len(answer.body) <= WRITE_BUFFER_BYTES:
        await send({"type": "http.response.body", "body": answer.body})
        return
    await _send_pieces(send, answer.body)
    await send({"type": "http.response.body", "body": b""})  # waits until the client has read most of it


async def _send_pieces(send: Send, content: bytes | bytearray | memoryview) -> None:
    """Sends in pieces, since TLS encrypts at once what it gets, and then nobody sees how much of it has not left."""
    body = memoryview(content)
    for start in range(0, len(body), _PIECE_BYTES):
        piece = body[start : start + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})


class HeldSend:
    """The `send` of every route behind FastAPI: no answer begins whose bytes find no room until its client reads them.

    refused  why an answer did not begin: another one may. Its route has got the same as an exception.
    """

    def __init__(self, send: Send, trace: Trace, context: RequestContext, memory: RowMemory) -> None:
        """The context holds the memory."""
        self.refused: NotReady | None = None
        self._send = send
        self._trace = trace
        self._context = context
        self._memory = memory
        self._start: Message | None = None  # until there is something of the body
        self._num_held = 0

    async def __call__(self, message: Message) -> None:
        """Raises NotReady."""
        if message["type"] == "http.response.start":
            self._trace.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self._trace.request_id.encode())]
            self._start = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        self._hold(to_hold(len(body)))
        if (start := self._start) is not None:
            self._start = None
            await self._send(start)
        self._trace.num_bytes += len(body)
        await _send_pieces(self._send, body)
        # Waits until most of it is read: only then the next piece of a file is.
        await self._send({"type": "http.response.body", "body": b"", "more_body": more})

    def _hold(self, num_bytes: int) -> None:
        if num_bytes <= self._num_held:
            return
        try:
            self._context.hold_answer(self._memory, num_bytes)
        except NotReady as error:
            self.refused = error if self._start is not None else None
            raise
        self._num_held = num_bytes
