"""The ASGI application of a frontend: every request comes here, and is answered by the route that it means."""

import asyncio
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from server.dialects.answers import Answer, ErrorShape, Headers, Streamed
from server.dialects.route import Route
from server.http import compression
from server.http.access import Hosts
from server.http.body import (
    STOPPING,
    WHOLE_BODY,
    WRITE_BUFFER_BYTES,
    ClientLeft,
    Receive,
    Scope,
    Send,
    TimedReceive,
    to_hold,
)
from server.http.paths import RouteTable
from server.http.request import BodyDecoder, HttpRequest, SharedByRequests, read_options, request_id, request_ids
from server.requests.errors import RequestError, stopping
from server.requests.limits import Allowance, OpenRequest
from server.requests.work import CLIENT_LEFT, RequestContext, Trace, failed
from wire.frames import Buffer
from wire.vocabulary import RequestClass

if TYPE_CHECKING:
    from server.http.line_streams import LineStreams

_PIECE_BYTES = 256 * 1024


class App:
    """Answers requests, and reports each one when it has ended.

    routes      all of them, those of features too
    url_prefix  may stand before every path; as server.http.paths has it
    has_documents_in_objects  whether rerank's results have documents as {"text": …} or as texts
    compress_answers  whether answers in JSON are compressed for clients that accept it
    """

    def __init__(
        self,
        shared: SharedByRequests,
        routes: Iterable[Route],
        *,
        has_documents_in_objects: bool,
        compress_answers: bool,
        hosts: Hosts,
        url_prefix: str = "",
    ) -> None:
        self._shared = shared
        self._admission = shared.admission
        self._has_documents_in_objects = has_documents_in_objects
        self._compress_answers = compress_answers
        self._hosts = hosts
        self._routes = RouteTable(routes, url_prefix=url_prefix)
        self._known_routes = self._routes.known
        self._line_streams: LineStreams | None = None
        self._decoder = BodyDecoder()
        self._request_ids = request_ids()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers = dict(scope["headers"])
        method, shared, whole = scope["method"], self._shared, scope.get(WHOLE_BODY)
        path = scope["path"]
        route, place, values = self._known_routes.get((method, path)) or self._routes.find(method, path)
        # the route is a label of the metrics, so there may be only as many as there are routes
        trace = Trace(method, route.path, request_id(headers) or next(self._request_ids))
        context, is_reported = RequestContext(), False
        try:
            with OpenRequest(self._admission.requests) as opened:
                request = HttpRequest(
                    shared.state,
                    shared.max_items,
                    trace,
                    route.error_shape,
                    context,
                    has_documents_in_objects=self._has_documents_in_objects,
                    shared=shared,
                    route=route,
                    scope=scope,
                    receive=TimedReceive(receive, opened, is_whole=whole is not None),
                    send=send,
                    headers=headers,
                    open=opened,
                    decoder=self._decoder,
                    place=place,
                    path_values=values,
                    whole_body=whole,
                )
                answer = await self._answer(request)
                if isinstance(answer, Answer):
                    await self._send(request, answer)
                elif answer is not None:
                    await self._send_pieces(request, answer)
                is_reported = answer is None
        except ClientLeft:
            pass
        except asyncio.CancelledError:  # the client left, or was cut off because it did not read
            trace.client_left()
            raise
        finally:
            context.release()
            trace.status = trace.status or CLIENT_LEFT
            trace.end()
            if not is_reported:  # the groups of a stream's lines have been reported
                shared.finished(trace)

    def refused(self, error: RequestError) -> None:
        """Report what never became a request: its head was too long or too slow, or it was not HTTP."""
        trace = Trace(route="other", request_id=next(self._request_ids))
        failed(error, trace)
        self._shared.finished(trace)

    async def _answer(self, request: HttpRequest) -> Answer | Streamed | None:
        """The answer of the route, or its error in the shape of its dialect; None if it was sent line by line."""
        trace, route = request.trace, request.route
        try:
            self._hosts.check(trace.method, route.path, request.headers)
            trace.key = request.context.key = self._shared.keys.check(trace.method, route.path, request.headers)
            if route.answer is None:
                return await self._computed(request)
            found = await route.answer(request)
            if isinstance(found, Streamed) and not request.is_head:
                found.body = await anext(found.pieces, b"")
            self._hold(request, found.body)
            return found
        except (Exception, asyncio.CancelledError) as error:
            return _failed(error, trace, request.error_shape)
        finally:
            request.let_go()

    async def _computed(self, request: HttpRequest) -> Answer | None:
        """The answer of a route that computes. None if it was sent line by line. Raises RequestError."""
        route, trace, context, place = request.route, request.trace, request.context, request.place
        models = self._shared.state.models_or_not_ready()
        request.options = read_options(request.headers)
        request.models = models if place is None or place.model is None else models.named(place.model)
        if route.takes_lines and request.has_lines:
            await self._answer_lines(request)
            return None
        work = await request.read(route.decode)
        trace.encoding = context.encoding = request.form.label
        stages = request.route.stages  # it may have chosen another route for this body
        result = await stages.run(self._shared.pipeline, work, trace)
        answer = await stages.encode(request, work, result)
        if self._compress_answers:
            answer = await compression.compressed(answer, request.headers.get(b"accept-encoding", b""))
        context.hold_answer(self._admission.row_memory_of(context.request_class), to_hold(len(answer.body)))
        return answer

    def _hold(self, request: HttpRequest, body: Buffer) -> None:
        """Hold the memory of what no engine computes until its client has read it. Raises NotReady."""
        request.context.hold_answer(self._admission.row_memory_of(RequestClass.BULK), to_hold(len(body)))

    async def _answer_lines(self, request: HttpRequest) -> None:
        """Raises what fails before the answer has begun."""
        from server.http.line_streams import LineStreams, check_head  # it comes after READY: see frontend.main

        with OpenRequest(self._admission.streams) as stream:
            stream.let_in(request.context.key)
            check_head(request.headers, request.scope.get("http_version", "1.1"))
            more = self._more_headers(request)
            streams = self._line_streams = self._line_streams or LineStreams(self._shared)
            await streams.answer(request.route, request, request.receive.of_stream, request.send, more)

    async def _send(self, request: HttpRequest, answer: Answer) -> None:
        request.open.end_work()
        trace, headers = request.trace, answer.headers
        trace.status, trace.num_bytes = answer.status, len(answer.body)
        if answer.status != 204:  # which has no body, not one without bytes
            headers.append((b"content-length", b"%d" % len(answer.body)))
        headers += self._more_headers(request)
        if trace.are_ids_decoded:
            headers.append((b"x-embedline-token-ids", b"cl100k"))
        if trace.has_joined:
            headers.append((b"x-embedline-joined", b"1"))
        await send_answer(request.send, answer)

    async def _send_pieces(self, request: HttpRequest, answer: Streamed) -> None:
        """Sends the next piece once the one before is read, and holds the memory of the largest until all are.

        Raises what ends the answer too early.
        """
        request.open.end_work()
        trace, headers = request.trace, [*answer.headers, (b"content-length", b"%d" % answer.num_bytes)]
        trace.stage, trace.status, most = "respond", answer.status, len(answer.body)
        headers += self._more_headers(request)
        await request.send({"type": "http.response.start", "status": answer.status, "headers": headers})
        while answer.body:
            trace.num_bytes += len(answer.body)
            await _send_in_parts(request.send, answer.body)
            answer.body = b""  # it is not kept while the next one is read
            await request.send({"type": "http.response.body", "body": b"", "more_body": True})  # waits for the client
            answer.body = await anext(answer.pieces, b"")
            if len(answer.body) > most:
                most = len(answer.body)
                self._hold(request, answer.body)
        if request.is_head or trace.num_bytes == answer.num_bytes:  # else the connection closes: it is not whole
            await request.send({"type": "http.response.body", "body": b""})

    def _more_headers(self, request: HttpRequest) -> Headers:
        """The headers of every answer."""
        headers, key = [(b"x-request-id", request.trace.request_id.encode())], request.context.key
        if key and (allowance := self._admission.allowance(key)) is not None:
            headers += _rate_limit_headers(allowance)
        return headers


def _rate_limit_headers(allowance: Allowance) -> Headers:
    """Headers of what an API key may still send, in OpenAI's words."""
    minutes, seconds = divmod(math.ceil(allowance.reset_seconds), 60)
    return [
        (b"x-ratelimit-limit-tokens", b"%d" % allowance.limit),
        (b"x-ratelimit-remaining-tokens", b"%d" % allowance.remaining),
        (b"x-ratelimit-reset-tokens", b"%dm%ds" % (minutes, seconds) if minutes else b"%ds" % seconds),
    ]


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
    await _send_in_parts(send, answer.body)
    await send({"type": "http.response.body", "body": b""})  # waits until the client has read most of it


async def _send_in_parts(send: Send, content: Buffer) -> None:
    """Sends in pieces, since TLS encrypts at once what it gets, and then nobody sees how much of it has not left."""
    body = memoryview(content)
    for start in range(0, len(body), _PIECE_BYTES):
        piece = body[start : start + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
