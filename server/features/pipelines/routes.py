"""The routes of pipelines: what there is, and one run, whose body is passed on as it is. The work is the pipelines
process's, behind its client.
"""

import asyncio
import socket
import time

import msgspec

from server.dialects.answers import JSON, Answer, json_answer
from server.dialects.route import OBJECT, Call, Response, Route, Schema
from server.dialects.row_answers import Container
from server.features.pipelines.feature import PIPELINES
from server.features.pipelines.messages import Listed, Run
from server.features.rpc import Caller
from server.frontend.parts import Part, Shared, bound
from server.frontend.start import FeatureStart
from server.http.body import ASGIApp
from server.http.request import HttpRequest, read_options
from server.http.server import HttpServer
from server.requests.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    MalformedBody,
    NoSuchRoute,
    NotFound,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    UnsupportedMedia,
)

_GRACE_SECONDS = 2.0  # for a run that is over its time to say so itself
_MSGPACK = b"application/msgpack"
_MSGPACKS = frozenset({_MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack"})  # as `accept` takes them


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

    def __init__(self, client: PipelinesClient, listener: socket.socket) -> None:
        self.routes = bound(PIPELINE_ROUTES, client)
        self._client = client
        self._listener = listener
        self._steps: HttpServer | None = None

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
    return PipelinesPart(client, socket.socket(fileno=start.process.listener_fd))


async def _list_pipelines(pipelines: PipelinesClient, call: Call) -> Answer:
    return json_answer({"pipelines": await pipelines.listing()})


async def run_pipeline(pipelines: PipelinesClient, call: HttpRequest) -> Answer:
    """The answer of a run. Raises RequestError."""
    options = read_options(call.headers)
    is_msgpack = call.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in _MSGPACKS
    answers_msgpack = options.accepts is Container.MSGPACK
    body = await call.read(lambda _, whole: whole, goes_on=True, is_json=not is_msgpack)
    name, owner = call.path_values["name"], call.owner
    asked = Run(name, owner, None, body, is_msgpack=is_msgpack, answers_msgpack=answers_msgpack)
    with call.shared.bodies.held(len(body)):  # until the answer is there: so runs never have more than bodies may
        running = pipelines.run(asked, options.deadline)
        del body, asked  # it is held in the other process alone
        found = await running
    return Answer(200, [(b"content-type", _MSGPACK) if answers_msgpack else JSON], found)


_ANYTHING: Schema = {kind: {"schema": {}} for kind in ("application/json", "application/msgpack")}
_EXAMPLE = {"query": "When does the boat go?"}
_BODY = {
    "required": True,
    "description": "The pipeline's parameters by name; with content-type application/msgpack in msgpack",
    "content": {"application/json": {"schema": {"type": "object"}, "example": _EXAMPLE}},
}
_OF_A_BODY = (NotFound, InvalidRequest, MalformedBody, PayloadTooLarge, UnsupportedMedia, Overloaded)
_LIST, _RUN = PIPELINES.routes
#: as the OpenAPI page has them; in a frontend, each with the client of its process before its call
PIPELINE_ROUTES = (
    Route(
        method=_LIST[0],
        path=_LIST[1],
        answer=_list_pipelines,
        summary=PIPELINES.routes[_LIST],
        responses={200: Response("In the pipeline's own form", OBJECT)},
        errors=(NotReady, NoSuchRoute),
    ),
    Route(
        method=_RUN[0],
        path=_RUN[1],
        answer=run_pipeline,
        summary=PIPELINES.routes[_RUN],
        body_schema=_BODY,
        example=_EXAMPLE,
        responses={200: Response("In the pipeline's own form", _ANYTHING)},
        errors=(NotReady, NoSuchRoute, *_OF_A_BODY, DeadlineExceeded, EngineFailed),
    ),
)
