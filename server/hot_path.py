"""The routes that must be cheap, reached by a small table of paths in front of FastAPI's stack.

A usual FastAPI handler costs some 250 µs a request more than this (docs/decisions/0003-hot-path.md).
"""

import asyncio
import logging
import time

from server import openai
from server.asgi import App, BodyReader, ClientLeft, Headers, Receive, Scope, Send, send_answer
from server.errors import EngineFailed, RequestError, openai_answer
from server.frontend_state import FrontendState
from server.pipeline import Pipeline
from server.request_headers import read_headers

EMBEDDINGS_PATHS = ("/v1/embeddings", "/embeddings")
_CLIENT_LEFT = 499  # as nginx logs it; nobody is there to read it

logger = logging.getLogger("embedline.server")


class HotPath:
    """The ASGI application: hot routes here, everything else in `fallback`."""

    def __init__(
        self, state: FrontendState, pipeline: Pipeline, bodies: BodyReader, *, fallback: App, max_items: int
    ) -> None:
        self._state = state
        self._pipeline = pipeline
        self._bodies = bodies
        self._fallback = fallback
        self._max_items = max_items
        self._handlers = {("POST", path): self._embeddings for path in EMBEDDINGS_PATHS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        handler = self._handlers.get((scope.get("method"), scope.get("path")))  # type: ignore[arg-type]
        if handler is None:
            await self._fallback(scope, receive, send)
            return
        began = time.perf_counter()
        with self._state.open_request():
            try:
                status, headers, body = await handler(scope, receive)
                await send_answer(send, status, headers, body)
            except (ClientLeft, asyncio.CancelledError):  # uvicorn's task is cancelled when the client leaves
                status = _CLIENT_LEFT
            except Exception as error:
                status = await _send_error(send, error)
        self._state.record(scope["path"], status, time.perf_counter() - began)

    async def _embeddings(self, scope: Scope, receive: Receive) -> tuple[int, Headers, bytes | memoryview]:
        """POST /v1/embeddings: decode, embed, encode."""
        wishes = read_headers(scope["headers"])
        body = await self._bodies.read(receive, wishes.content_length)
        models = self._state.models_or_not_ready()
        request, encoding = openai.decode(body, wishes, models, max_items=self._max_items)
        embedded = await self._pipeline.embed(request)
        answer = await openai.encode(embedded, encoding, request.model.name)
        headers = openai.headers(embedded, encoding)
        headers.append((b"content-length", b"%d" % len(answer)))
        return 200, headers, answer


async def _send_error(send: Send, error: Exception) -> int:
    if not isinstance(error, RequestError):
        logger.error("a request failed for a reason of our own", exc_info=error)
        error = EngineFailed("the server failed on this request")
    answer = openai_answer(error)
    await send_answer(send, answer.status, answer.headers, answer.body)
    return answer.status
