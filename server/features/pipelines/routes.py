"""The routes of pipelines: what there is, and one run. The work is the pipelines process's, behind its client.

POST is a route in front of FastAPI, which passes the body on as it is.
"""

from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from server.dialects.route import Answer
from server.dialects.writing.error_shapes import openai_error
from server.dialects.writing.forms import Container
from server.features.pipelines.client import PipelinesClient
from server.features.pipelines.messages import Run
from server.http.body import BodyReader
from server.http.headers import read_options
from server.http.openapi import error_statuses
from server.http.request import HeaderList, PassOn, Read
from server.requests.errors import (
    DeadlineExceeded,
    EngineFailed,
    Forbidden,
    InvalidRequest,
    MalformedBody,
    NoSuchRoute,
    NotFound,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    RequestError,
    Unauthorized,
    UnsupportedMedia,
    WrongMethod,
)

RUN_ROUTE = "/pipelines/{name}"
_PREFIX = "/pipelines/"
_NO_PIPELINES = "start the server with --pipelines FILE.py to have this route"
_JSON, _MSGPACK = b"application/json", b"application/msgpack"
_MSGPACKS = frozenset({_MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack"})  # as `accept` takes them

_Schema = dict[str, Any]


class RunPipeline:
    """POST /pipelines/{name}."""

    route = RUN_ROUTE

    def __init__(self, pipelines: PipelinesClient | None, bodies: BodyReader) -> None:
        """Without `pipelines` every request is answered with how to have them."""
        self._pipelines = pipelines
        self._bodies = bodies

    def at(self, method: str, path: str) -> PassOn | None:
        """Who answers there; None if this is no run."""
        if method != "POST" or not path.startswith(_PREFIX):
            return None
        return partial(self._answer, path.removeprefix(_PREFIX))

    async def _answer(self, name: str, read: Read, headers: HeaderList, owner: str) -> Answer:
        """Raises RequestError."""
        if self._pipelines is None:
            raise NoSuchRoute(_NO_PIPELINES)
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


def add_pipeline_routes(app: FastAPI, pipelines: PipelinesClient | None) -> None:
    """Without `pipelines` each of them answers how to have them."""

    async def listing() -> Response:
        try:
            if pipelines is None:
                raise NoSuchRoute(_NO_PIPELINES)
            body = msgspec.json.encode({"pipelines": await pipelines.listing()})
        except RequestError as error:
            refused = openai_error(error)
            headers = {name.decode(): value.decode() for name, value in refused.headers}
            return Response(bytes(refused.body), status_code=refused.status, headers=headers)
        return Response(body, media_type="application/json")

    async def unreached(request: Request) -> Response:
        """It is answered in front of FastAPI, and stands here for the OpenAPI page."""
        raise AssertionError

    app.add_api_route(
        "/pipelines", listing, methods=["GET"], summary="The pipelines of --pipelines, with their schemas",
        operation_id="get_pipelines", openapi_extra={"responses": _responses(NoSuchRoute)},
    )  # fmt: skip
    app.add_api_route(
        RUN_ROUTE, unreached, methods=["POST"], summary="Run a pipeline; GET /pipelines has the schema of its body",
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
    """What a route answers, and with which errors."""
    found = error_statuses([openai_error], of=[Unauthorized, Forbidden, WrongMethod, NotReady, *kinds])
    errors = {
        status: _described(" ".join(texts), {"$ref": f"#/components/schemas/{names[0]}"})
        for status, (texts, names) in sorted(found.items())
    }
    return {"200": _described("In the pipeline's own form", {}), **errors}


def _described(description: str, schema: _Schema) -> _Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
