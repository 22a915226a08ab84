"""The routes of pipelines: what there is, and one run. The work is the pipelines process's, behind its client.

POST is a route in front of FastAPI, which passes the body on as it is.
"""

import asyncio
import socket
import time
from functools import partial
from typing import Any, cast

import msgspec
from fastapi import FastAPI, Request, Response

from server.dialects.route import Answer
from server.dialects.row_forms import Container
from server.features.pipelines.feature import PIPELINES
from server.features.pipelines.messages import Listed, Run
from server.features.rpc import Caller
from server.frontend.parts import Part, Shared
from server.frontend.start import FeatureStart
from server.http.body import ASGIApp, RequestBodies
from server.http.headers import read_options
from server.http.http_server import HttpServer
from server.http.openapi import errors_of
from server.http.request import HeaderList, PassOn, Read
from server.requests.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    MalformedBody,
    NoSuchRoute,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RequestError,
    UnsupportedMedia,
)

_PREFIX = "/pipelines/"
_GRACE_SECONDS = 2.0  # for a run that is over its time to say so itself
_JSON, _MSGPACK = b"application/json", b"application/msgpack"
_MSGPACKS = frozenset({_MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack"})  # as `accept` takes them

_Schema = dict[str, Any]


class PipelinesClient(Caller):
    """A frontend's end. The process says what it has as soon as it is there."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "pipelines", lost="ended during this run")
        self._listing: dict[str, Listed] | None = None  # the newest

    async def listing(self) -> list[Listed]:
        """The list of pipelines. Raises NotReady before the process was there for the first time."""
        if self._listing is None:
            await self.wait_for_it()
        assert self._listing is not None
        return list(self._listing.values())

    async def run(self, run: Run, deadline: float) -> bytes:
        """The answer's body. `deadline` is a time.monotonic(). Raises RequestError; cancelling it cancels the run."""
        pipeline = run.pipeline
        await self.wait_for_it()
        assert self._listing is not None
        if pipeline not in self._listing:
            raise NotFound("no pipeline has this name; GET /pipelines lists them", param="name")
        left, timeout = deadline - time.monotonic(), self._listing[pipeline].timeout
        if left <= 0:
            raise DeadlineExceeded("the deadline had passed before the pipeline began")
        fields = msgspec.structs.asdict(run) | {"seconds": left if left < timeout else None}
        calling = self.call("run", timeout_s=None, **fields)
        del run, fields  # its body is the other process's now
        try:
            async with asyncio.timeout(min(left, timeout) + _GRACE_SECONDS):
                return bytes((await calling).body)
        except TimeoutError:
            raise DeadlineExceeded(f"pipeline {pipeline} did not end in time, and did not say why") from None

    def is_there(self, says: memoryview) -> None:
        listing = msgspec.msgpack.decode(says, type=list[Listed])
        self._listing = {one.name: one for one in listing}
        super().is_there(says)


class PipelinesPart(Part):
    """Passes runs on to the pipelines process. The requests of their steps come in at a server of their own, which
    stops last: the runs that are open need it."""

    def __init__(self, client: PipelinesClient, bodies: RequestBodies, listener: socket.socket) -> None:
        self.passed_on = RunPipeline(client, bodies)
        self._client = client
        self._listener = listener
        self._steps: HttpServer | None = None

    def add_routes(self, app: FastAPI) -> None:
        add_pipeline_routes(app, self._client)

    async def open(self, app: ASGIApp) -> None:
        self._client.open()
        self._steps = HttpServer(app, [self._listener])
        await self._steps.start()

    async def stop_last(self, seconds: float) -> None:
        if self._steps is not None:
            await self._steps.stop(seconds)

    def close(self) -> None:
        self._client.close()


def make_part(start: FeatureStart, shared: Shared) -> PipelinesPart:
    """The part of pipelines in a frontend."""
    assert start.process is not None
    shared.keys.let_act(start.process.secret)
    client = PipelinesClient(start.process.path)
    return PipelinesPart(client, shared.bodies, socket.socket(fileno=start.process.listener_fd))


class RunPipeline:
    """POST /pipelines/{name}."""

    route = PIPELINES.passed_on

    def __init__(self, pipelines: PipelinesClient, bodies: RequestBodies) -> None:
        self._pipelines = pipelines
        self._bodies = bodies

    def at(self, method: str, path: str) -> PassOn | None:
        """The answer to a run there; None if this is no run."""
        if method != "POST" or not path.startswith(_PREFIX):
            return None
        return partial(self._answer, path.removeprefix(_PREFIX))

    async def _answer(self, name: str, read: Read, headers: HeaderList, owner: str) -> Answer:
        """The answer of a run. Raises RequestError."""
        by_name = dict(headers)
        options = read_options(by_name)
        is_msgpack = by_name.get(b"content-type", b"").partition(b";")[0].strip().lower() in _MSGPACKS
        answers_msgpack = options.accepts is Container.MSGPACK
        body = await read(bytes, is_json=not is_msgpack)
        asked = Run(name, owner, None, body, is_msgpack=is_msgpack, answers_msgpack=answers_msgpack)
        with self._bodies.held(len(body)):  # until the answer is there: so runs never have more than bodies may
            running = self._pipelines.run(asked, options.deadline)
            del body, asked  # it is held in the other process alone
            body = await running
        return Answer(200, [(b"content-type", _MSGPACK if answers_msgpack else _JSON)], body)


def add_pipeline_routes(app: FastAPI, pipelines: PipelinesClient | None = None) -> None:
    """Add the routes with what the OpenAPI page says of each. Without `pipelines` they stand there for the page
    alone."""

    async def listing() -> Response:
        body = msgspec.json.encode({"pipelines": await cast(PipelinesClient, pipelines).listing()})
        return Response(body, media_type="application/json")

    async def unreached(request: Request) -> Response:
        """It is answered in front of FastAPI, and stands here for the OpenAPI page."""
        raise AssertionError

    app.add_api_route(
        "/pipelines", listing, methods=["GET"], summary=PIPELINES.routes["GET", "/pipelines"],
        operation_id="get_pipelines", openapi_extra={"responses": _responses(NoSuchRoute)},
    )  # fmt: skip
    app.add_api_route(
        PIPELINES.passed_on, unreached, methods=["POST"], summary=PIPELINES.routes["POST", PIPELINES.passed_on],
        operation_id="post_pipelines_name", openapi_extra=_run_operation(),
    )  # fmt: skip


def _run_operation() -> _Schema:
    anything = {"application/json": {"schema": {"type": "object"}, "example": {"query": "When does the boat go?"}}}
    problems = (NoSuchRoute, NotFound, InvalidRequest, MalformedBody, PayloadTooLarge, UnsupportedMedia, Overloaded)
    responses = _responses(*problems, DeadlineExceeded, EngineFailed)
    responses["200"]["content"]["application/msgpack"] = {"schema": {}}
    described = "The pipeline's parameters by name; with content-type application/msgpack in msgpack"
    return {
        "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"required": True, "description": described, "content": anything},
        "responses": responses,
    }


def _responses(*kinds: type[RequestError]) -> _Schema:
    """The answers and errors of a route."""
    anything = {"description": "In the pipeline's own form", "content": {"application/json": {"schema": {}}}}
    return {"200": anything, **errors_of(*kinds)}
