"""One route of a dialect, and one request as its handler sees it. Knows no dialect."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from server.frontend.state import FrontendState
from server.http.body import BodyReader, Headers, Receive
from server.http.headers import Wishes
from server.requests.admission import Admission
from server.requests.errors import EngineFailed, ErrorShape, RequestError
from server.requests.models import ModelTable
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace

Answer = tuple[int, Headers, bytes | memoryview]  # status, headers, body

logger = logging.getLogger("embedline.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the routes of a frontend share."""

    state: FrontendState
    admission: Admission
    pipeline: Pipeline
    bodies: BodyReader
    max_items: int  # of one request


@dataclass(frozen=True, slots=True)
class Call:
    """One request. A handler decodes its body, carries it through the pipeline and encodes what comes back."""

    resources: Resources
    receive: Receive
    wishes: Wishes
    trace: Trace
    models: ModelTable

    async def body(self) -> bytes:
        """All of it. Raises PayloadTooLarge, Overloaded, BodyTooSlow and ClientLeft."""
        began = time.perf_counter()
        body = await self.resources.bodies.read(self.receive, self.wishes.content_length)
        self.trace.read_seconds += time.perf_counter() - began  # a route that another is behind reads it twice
        self.trace.num_body_bytes = len(body)
        return body

    @contextmanager
    def held(self, body: bytes) -> Iterator[None]:
        """Count the body as open for as long as what was made of it is."""
        with self.resources.bodies.held(len(body)):
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path that takes POST, in the shapes of one dialect."""

    path: str
    handler: Callable[[Call], Awaitable[Answer]]
    error_shape: ErrorShape  # where the handler does not answer an error itself
    summary: str  # for the OpenAPI page, as are the next two
    body: type  # a msgspec.Struct: the request's body
    responses: dict[str, Any]  # content type -> JSON schema, of the answer to a good request


def failed(error: Exception, trace: Trace, shape: ErrorShape) -> Answer:
    """The answer to a request that failed, which is noted in its trace."""
    if not isinstance(error, RequestError):
        logger.error("request %s failed for a reason of our own", trace.request_id, exc_info=error)
        error = EngineFailed("the server failed on this request")
    trace.error, trace.reason = type(error).__name__, error.reason
    answer = shape(error)
    return answer.status, answer.headers, answer.body
