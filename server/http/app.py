"""The ASGI application of a frontend: every request passes here, and the cheap routes are answered here.

Hot routes are reached by a small table of paths in front of FastAPI's stack, since a usual FastAPI handler costs some
250 µs a request more than this (docs/decisions/0003-hot-path.md). FastAPI answers everything else.
"""

import asyncio
import itertools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.routing import BaseRoute

from server.frontend.observer import Observer
from server.http.auth import Keys
from server.http.body import ClientLeft, Message, Receive, Scope, Send, send_answer
from server.http.headers import read_headers, request_id
from server.http.post_routes import ROUTES
from server.http.route import Answer, Call, Resources, Route, failed
from server.requests.errors import ErrorShape, NotReady, RequestError, Unauthorized, openai_answer
from server.requests.trace import Trace

_CLIENT_LEFT = 499  # as nginx logs it; nobody is there to read it


@dataclass(frozen=True, slots=True)
class _Request:
    """One request as it came."""

    scope: Scope
    receive: Receive
    send: Send
    headers: Mapping[bytes, bytes]
    trace: Trace


class HotPath:
    """Each request: who asks, the answer, and a note of it."""

    def __init__(self, resources: Resources, *, keys: Keys, observer: Observer, fallback: FastAPI) -> None:
        self._resources = resources
        self._keys = keys
        self._observer = observer
        self._fallback = fallback
        self._routes = {("POST", route.path.rstrip("/") + slash): route for route in ROUTES for slash in ("", "/")}
        # a label of the metrics, so there may be only as many as there are routes
        self._names = {getattr(route, "path", "") for route in fallback.routes} | {route.path for route in ROUTES}
        self._request_ids = _request_ids()

    @property
    def slow_routes(self) -> list[BaseRoute]:
        """What FastAPI answers."""
        return self._fallback.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers = dict(scope["headers"])
        method, path = scope["method"], scope["path"]
        route = self._routes.get((method, path))
        trace = Trace(method, path if path in self._names else "other", request_id(headers) or next(self._request_ids))
        request = _Request(scope, receive, send, headers, trace)
        try:
            with self._resources.admission.open_request():
                if route is None:
                    await self._answer_slowly(request)
                else:
                    trace.route = route.path
                    await self._send(request, await self._answer(route, request))
        finally:
            trace.status = trace.status or _CLIENT_LEFT  # it left while FastAPI was at it
            trace.end()
            self._observer.finished(trace)

    def refused(self, error: RequestError) -> None:
        """Take note of what never became a request: its head was too long or too slow, or no HTTP."""
        trace = Trace(route="other", request_id=next(self._request_ids), error=type(error).__name__)
        trace.status = openai_answer(error).status
        self._observer.finished(trace)

    async def _answer(self, route: Route, request: _Request) -> Answer:
        """A hot route's."""
        trace = request.trace
        try:
            trace.key = self._keys.check(trace.method, trace.route, request.headers)
            self._resources.admission.check_open()
            models = self._resources.state.models_or_not_ready()
            wishes = read_headers(request.headers)
            return await route.handler(Call(self._resources, request.receive, wishes, trace, models))
        except (ClientLeft, asyncio.CancelledError):
            return self._interrupted(trace, route.error_shape)
        except Exception as error:
            return failed(error, trace, route.error_shape)

    async def _answer_slowly(self, request: _Request) -> None:
        """FastAPI's."""
        trace = request.trace

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", trace.request_id.encode())]
            else:
                trace.num_bytes += len(message.get("body", b""))
            await request.send(message)

        try:
            trace.key = self._keys.check(trace.method, request.scope["path"], request.headers)
        except Unauthorized as error:
            await self._send(request, failed(error, trace, openai_answer))
            return
        # the body of an answer to HEAD is left out by whoever writes it to the connection
        scope = {**request.scope, "method": "GET"} if trace.method == "HEAD" else request.scope
        await self._fallback(scope, request.receive, send)

    async def _send(self, request: _Request, answer: Answer) -> None:
        trace = request.trace
        trace.status, headers, body = answer
        trace.num_bytes = len(body)
        headers.append((b"content-length", b"%d" % len(body)))
        headers.append((b"x-request-id", trace.request_id.encode()))
        try:
            await send_answer(request.send, trace.status, headers, body)
        except asyncio.CancelledError:  # the client left, or was cut off since it did not read
            trace.status, trace.error = _CLIENT_LEFT, "ClientLeft"
            raise

    def _interrupted(self, trace: Trace, shape: ErrorShape) -> Answer:
        """The client left, and gets nothing that is sent now; or the server stops and can't wait any longer."""
        if self._resources.state.draining:
            return failed(NotReady("the server is stopping", retry_after=1.0), trace, shape)
        trace.error = "ClientLeft"
        return _CLIENT_LEFT, [], b""


def _request_ids() -> Iterator[str]:
    """No two are the same, whichever process gives them."""
    prefix = secrets.token_hex(6)
    return (f"{prefix}{number:x}" for number in itertools.count())
