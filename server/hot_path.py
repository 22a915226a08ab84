"""The routes that must be cheap, reached by a small table of paths in front of FastAPI's stack.

A usual FastAPI handler costs some 250 µs a request more than this (docs/decisions/0003-hot-path.md).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from server import openai
from server.admission import Admission
from server.asgi import App, BodyReader, ClientLeft, Headers, Receive, Scope, Send, send_answer
from server.errors import EngineFailed, NotReady, RequestError, openai_answer
from server.frontend_state import FrontendState
from server.pipeline import Pipeline
from server.request_headers import read_headers

_CLIENT_LEFT = 499  # as nginx logs it; nobody is there to read it

Answer = tuple[int, Headers, bytes | memoryview]  # status, headers, body

logger = logging.getLogger("embedline.server")


class HotPath:
    """The ASGI application: hot routes here, everything else in `fallback`."""

    def __init__(
        self,
        state: FrontendState,
        admission: Admission,
        *,
        pipeline: Pipeline,
        bodies: BodyReader,
        fallback: App,
        max_items: int,
    ) -> None:
        self._state = state
        self._admission = admission
        self._pipeline = pipeline
        self._bodies = bodies
        self._fallback = fallback
        self._max_items = max_items
        self._routes: dict[tuple[str, str], tuple[str, Callable[[Scope, Receive], Awaitable[Answer]]]] = {
            ("POST", path + slash): (path, self._embeddings) for path in openai.EMBEDDINGS_PATHS for slash in ("", "/")
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await self._fallback(scope, receive, send)
            return
        path, handler = route
        began = time.perf_counter()
        with self._admission.open_request():
            try:
                self._admission.check_open()
                status, headers, body = await handler(scope, receive)
            except (ClientLeft, asyncio.CancelledError):
                status, headers, body = self._interrupted()
            except Exception as error:
                status, headers, body = _failed(error)
            try:
                await send_answer(send, status, headers, body)
            except TimeoutError:
                status = _CLIENT_LEFT  # it stopped reading; the connection is closed behind us
        self._state.record(path, status, time.perf_counter() - began)

    async def _embeddings(self, scope: Scope, receive: Receive) -> Answer:
        """POST /v1/embeddings: decode, embed, encode."""
        wishes = read_headers(scope["headers"])
        models = self._state.models_or_not_ready()
        body = await self._bodies.read(receive, wishes.content_length)
        with self._bodies.held(len(body)):
            request, encoding = openai.decode(body, wishes, models, max_items=self._max_items)
            del body  # what is in it was copied out
            embedded = await self._pipeline.embed(request)
        answer = await openai.encode(embedded, encoding, request.model.name)
        self._state.record_input(request.model.name, embedded.num_tokens, embedded.num_truncated)
        headers = openai.headers(embedded, encoding)
        headers.append((b"content-length", b"%d" % len(answer)))
        return 200, headers, answer

    def _interrupted(self) -> Answer:
        """The client left, and gets nothing that is sent now; or the server stops and can't wait any longer."""
        if self._state.draining:
            return _failed(NotReady("the server is stopping", retry_after=1.0))
        return _CLIENT_LEFT, [], b""


def _failed(error: Exception) -> Answer:
    if not isinstance(error, RequestError):
        logger.error("a request failed for a reason of our own", exc_info=error)
        error = EngineFailed("the server failed on this request")
    answer = openai_answer(error)
    return answer.status, answer.headers, answer.body
