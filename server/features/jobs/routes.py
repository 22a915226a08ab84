"""The routes of async requests: POST /async_predict keeps one for any route of this server and answers with its id; the
others are what became of it, its result, its end, and the queue: https://docs.baseten.co/inference/async

`route` is ours, and so are bodies of over 256 KiB. POST /async_predict is in front of FastAPI: to keep a request must
not cost a frontend more than to answer it. All other routes of jobs, those of batches as well, are added to FastAPI
here; the functions after them say what its OpenAPI page tells of each.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, cast

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from server.dialects.reading.json_body import LosslessDecoder, parse
from server.dialects.route import Answer, retry_after
from server.dialects.table import ROUTES
from server.features.jobs.batch_routes import BatchRoutes, NewBatch, in_pieces
from server.features.jobs.feature import JOBS
from server.features.jobs.messages import MAX_BODY_BYTES
from server.features.jobs.types import Status
from server.features.rpc import Caller, Reply
from server.frontend.parts import Part, Shared
from server.frontend.start import FeatureStart
from server.http.body import IS_HEAD, OWNER, ASGIApp
from server.http.openapi import errors_of
from server.http.request import HeaderList, PassOn, Read
from server.requests.errors import (
    RETRY_AFTER,
    Conflict,
    InvalidRequest,
    MalformedBody,
    NoSuchRoute,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    UnsupportedMedia,
)
from wire.frames import Buffer

PLACE = ("POST", "/async_predict")
_ROUTES = frozenset(route.path for route in ROUTES)
_DEFAULT_ROUTE = "/invocations"  # does what the fields of the body ask for
_KEY = re.compile(rb"[!-~]{1,255}")
_MAX_ACCEPT = 256  # characters

_UNENDED = ("QUEUED", "IN_PROGRESS")
_ASK_AGAIN = {"retry-after": retry_after(RETRY_AFTER["no_result_yet"])}
Schema = dict[str, Any]
_OF_A_BODY = (MalformedBody, InvalidRequest, PayloadTooLarge, UnsupportedMedia, Overloaded)
_FORM = {
    "type": "object",
    "properties": {"purpose": {"enum": ["batch"]}, "file": {"type": "string", "format": "binary"}},
    "required": ["purpose", "file"],
}
_FILE = {"multipart/form-data": {"schema": _FORM, "example": {"purpose": "batch", "file": "{}"}}}
_VIEW = {
    "type": "object",
    "properties": {"request_id": {"type": "string"}, "status": {"enum": [status.value for status in Status]}},
    "required": ["request_id", "status"],
}
_COUNTS = {"type": "object"}
_EXAMPLE = {"model_input": {"input": "The ferry leaves at seven.", "model": "any"}, "priority": 1}
_KEY_HEADER = {
    "name": "idempotency-key",
    "in": "header",
    "required": False,
    "description": "A second request with the same key and body is answered with the first one's id",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


class RetryConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When attempts that failed with 500, 502 or 504 are repeated; the waits double."""

    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    initial_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1000
    max_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 5000


class AsyncPredictBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /async_predict."""

    model_input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
    route: str | None = None
    webhook_endpoint: Annotated[str, msgspec.Meta(max_length=2048)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0
    max_time_in_queue_seconds: Annotated[int, msgspec.Meta(ge=10, le=259_200)] = 600
    inference_retry_config: RetryConfig | None = None


class Accepted(msgspec.Struct):
    """The answer to it."""

    request_id: str


_BODY = LosslessDecoder[AsyncPredictBody](AsyncPredictBody)


class AsyncPredict:
    """The route."""

    route = PLACE[1]

    def __init__(self, jobs: Caller) -> None:
        self._jobs = jobs

    def at(self, method: str, path: str) -> PassOn | None:
        """The answer to a request there; None if it is not this route."""
        return self._answer if (method, path) == PLACE else None

    async def _answer(self, read: Read, headers: HeaderList, owner: str) -> Answer:
        """The id of a new request. Raises RequestError; then nothing was accepted."""
        by_name = dict(headers)
        if int(by_name.get(b"content-length", b"0")) > MAX_BODY_BYTES:
            raise _too_large()
        keys = [value for name, value in headers if name == b"idempotency-key"]
        fields = _fields(await read(_decode), by_name, keys)
        added = (await self._jobs.call("add", owner, **fields)).value
        body = msgspec.json.encode(Accepted(added["request_id"]))
        return Answer(202, [(b"content-type", b"application/json")], body)


def _decode(body: bytes) -> AsyncPredictBody:
    """The fields of the body. Raises MalformedBody, InvalidRequest and PayloadTooLarge."""
    if len(body) > MAX_BODY_BYTES:
        raise _too_large()
    fields = parse(_BODY, body)
    _refuse_other_than_utf8(body)
    if not bytes(fields.model_input).startswith(b"{"):
        raise InvalidRequest("model_input must be an object: the body that its route takes", param="model_input")
    if fields.route is not None and fields.route not in _ROUTES:
        raise InvalidRequest("route must be a path of this server that takes POST, as /v1/embeddings", param="route")
    return fields


def _fields(body: AsyncPredictBody, headers: Mapping[bytes, bytes], keys: Sequence[bytes]) -> dict[str, Any]:
    """The fields of the request as the jobs process takes them. Raises InvalidRequest."""
    fields: dict[str, Any] = {
        "body": bytes(body.model_input),
        "route": body.route or _DEFAULT_ROUTE,
        "priority": body.priority,
        "max_time_in_queue": float(body.max_time_in_queue_seconds),
        "webhook_endpoint": body.webhook_endpoint,
    }
    if body.inference_retry_config is not None:
        fields["retry"] = msgspec.structs.asdict(body.inference_retry_config)
    accept = headers.get(b"accept", b"").decode("latin-1")
    if accept:
        if len(accept) > _MAX_ACCEPT:
            raise InvalidRequest(f"accept may have {_MAX_ACCEPT} characters here", param="accept")
        fields["headers"] = [("accept", accept)]
    if keys:
        if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
            message = "idempotency-key must be one header of 1 to 255 visible ASCII characters"
            raise InvalidRequest(message, param="idempotency-key")
        fields["idempotency_key"] = keys[0].decode()
    return fields


def _refuse_other_than_utf8(body: bytes) -> None:
    """msgspec doesn't look into the texts of `model_input`, which it leaves as it is. Raises MalformedBody."""
    try:
        body.decode()
    except UnicodeDecodeError:
        raise MalformedBody("the body is not valid JSON in UTF-8") from None


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(f"the body has more than the {MAX_BODY_BYTES} bytes of an async request")


class JobsPart(Part):
    """Passes requests on to the jobs process, and serves those that it sends itself."""

    def __init__(self, client: Caller, listeners: Sequence[socket.socket] = ()) -> None:
        self.listeners = listeners
        self.passed_on = AsyncPredict(client)
        self._client = client

    def add_routes(self, app: FastAPI) -> None:
        add_job_routes(app, self._client)

    async def open(self, app: ASGIApp) -> None:
        self._client.open()

    def close(self) -> None:
        self._client.close()


def make_part(start: FeatureStart, shared: Shared) -> JobsPart:
    """The part of jobs in a frontend."""
    assert start.process is not None
    shared.keys.let_act(start.process.secret)
    return JobsPart(Caller(start.process.path, JOBS.name), [socket.socket(fileno=start.process.listener_fd)])


def add_job_routes(app: FastAPI, jobs: Caller | None = None) -> None:
    """Add the routes with what the OpenAPI page says of each. Without `jobs` they stand there for the page alone."""
    client = cast(Caller, jobs)
    routes, of_batches = _Routes(client), BatchRoutes(client)
    for method, path, endpoint in (
        (*PLACE, routes.unreached),
        ("GET", "/async_request/{request_id}", routes.view),
        ("GET", "/async_request/{request_id}/result", routes.result),
        ("DELETE", "/async_request/{request_id}", routes.cancel),
        ("GET", "/async_queue_status", routes.queue_status),
        ("GET", "/jobs", routes.jobs),
        ("POST", "/v1/files", of_batches.upload),
        ("GET", "/v1/files", of_batches.listing("file")),
        ("GET", "/v1/files/{file_id}", of_batches.one("file_view")),
        ("DELETE", "/v1/files/{file_id}", of_batches.deleting("file")),
        ("GET", "/v1/files/{file_id}/content", of_batches.content),
        ("POST", "/v1/batches", of_batches.create),
        ("GET", "/v1/batches", of_batches.listing("batch")),
        ("GET", "/v1/batches/{batch_id}", of_batches.one("batch_view")),
        ("DELETE", "/v1/batches/{batch_id}", of_batches.deleting("batch")),
        ("POST", "/v1/batches/{batch_id}/cancel", of_batches.one("batch_cancel")),
    ):
        app.add_api_route(path, endpoint, methods=[method], **documented(method, path))


class _Routes:
    """Routes for async requests. Each raises RequestError."""

    def __init__(self, jobs: Caller) -> None:
        self._jobs = jobs

    async def unreached(self, request: Request) -> Response:
        """It is answered in front of FastAPI, and stands here for the OpenAPI page."""
        raise AssertionError

    async def view(self, request: Request) -> Response:
        """Status, webhook's status, times and errors."""
        return JSONResponse(_shown((await self._call("view", request)).value))

    async def result(self, request: Request) -> Response:
        """What the route answered, byte for byte and a piece at a time; 202 until then."""
        first = await self._call("result", request)
        result = first.value.get("result")
        if result is None:
            view = first.value["view"]
            if view["status"] in _UNENDED:
                return JSONResponse(_shown(view), status_code=202, headers=_ASK_AGAIN)
            raise Conflict(f"this request has no result: its status is {view['status']}")
        headers = {**dict(result["headers"]), "content-type": result["content_type"]}
        if request.scope.get(IS_HEAD, False):
            headers["content-length"] = str(result["bytes"])
            return Response(status_code=result["status_code"], headers=headers)

        async def more(offset: int) -> Buffer:
            return (await self._call("result", request, offset=offset)).body

        return in_pieces(first.body, result["bytes"], more, status=result["status_code"], headers=headers)

    async def cancel(self, request: Request) -> Response:
        """Only while it is QUEUED."""
        fields = (await self._call("cancel", request)).value
        if not fields["canceled"]:
            raise Conflict(f"only a request that is QUEUED can be canceled, and this one is {fields['view']['status']}")
        return JSONResponse({**_shown(fields["view"]), "canceled": True})

    async def queue_status(self, request: Request) -> Response:
        """In Baseten's words."""
        counts = (await self._call("counts", request)).value
        return JSONResponse(
            {
                "model_id": "embedline",
                "deployment_id": "embedline",
                "num_queued_requests": sum(counts["queued"]),
                "num_in_progress_requests": counts["in_progress"],
            }
        )

    async def jobs(self, request: Request) -> Response:
        """What waits, by priority, how long, and how much room it takes; the batches that are open, and the files."""
        counts = (await self._call("counts", request)).value
        queued = {str(priority): number for priority, number in enumerate(counts.pop("queued"))}
        documents = (await self._call("document_counts", request)).value
        return JSONResponse({"queued": queued, **counts, **documents})

    async def _call(self, what: str, request: Request, **fields: Any) -> Reply:
        return await self._jobs.call(what, request.scope[OWNER], **request.path_params, **fields)


def _shown(view: dict[str, Any]) -> dict[str, Any]:
    """The request as Baseten shows it, with route and priority beside it."""
    times = {name: datetime.fromtimestamp(view[name], UTC).isoformat() for name in ("created_at", "status_at")}
    return {**view, "model_id": "embedline", "deployment_id": "embedline", **times}


def documented(method: str, path: str) -> dict[str, Any]:
    """The arguments that describe a route to FastAPI."""
    place = (method, path)
    return {
        "summary": JOBS.routes[place],
        "operation_id": "_".join([method.lower(), *path.strip("/").replace("{", "").replace("}", "").split("/")]),
        "openapi_extra": _accepting() if place == PLACE else _asking(method, path),
        "status_code": 202 if place == PLACE else 200,
    }


def _accepting() -> Schema:
    return {
        "parameters": [_KEY_HEADER],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _schema(AsyncPredictBody), "example": _EXAMPLE}},
        },
        "responses": {
            "202": _answer("It is kept", _schema(Accepted)),
            **errors_of(NoSuchRoute, Conflict, *_OF_A_BODY),
        },
    }


def _schema(body: type[msgspec.Struct]) -> Schema:
    """The schema of a type without references: these types are on no other route."""
    (schema,), components = msgspec.json.schema_components([body], ref_template="{name}")

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return (
                whole(components[value["$ref"]]) if "$ref" in value else {key: whole(one) for key, one in value.items()}
            )
        return [whole(one) for one in value] if isinstance(value, list) else value

    found: Schema = whole(schema)
    return found


def _asking(method: str, path: str) -> Schema:
    if path.startswith("/v1/"):
        return _of_batches(method, path)
    if "{" not in path:
        return {"responses": {"200": _answer("The numbers", _COUNTS), **errors_of(NoSuchRoute)}}
    responses = {"200": _answer("It is there", _VIEW), **errors_of(NoSuchRoute, NotFound, Conflict)}
    if path.endswith("/result"):
        responses["202"] = _answer("It has not ended yet", _VIEW)
    return {"parameters": _ids(path), "responses": responses}


def _of_batches(method: str, path: str) -> Schema:
    """The schema of a batch in OpenAI's words."""
    responses = {
        "200": _answer("It is there", {"type": "object"}),
        **errors_of(NoSuchRoute, NotFound, InvalidRequest, MalformedBody, UnsupportedMedia, PayloadTooLarge),
    }
    if path.endswith("/content"):
        bytes_there = {"schema": {"type": "string", "format": "binary"}}
        responses["200"] = {"description": "The bytes", "content": {"application/octet-stream": bytes_there}}
    operation = {"parameters": _ids(path), "responses": responses}
    if method == "POST" and "{" not in path:
        operation["requestBody"] = {"required": True, "content": _FILE if path == "/v1/files" else _batch()}
    return operation


def _batch() -> Schema:
    example = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return {"application/json": {"schema": _schema(NewBatch), "example": example}}


def _ids(path: str) -> list[Schema]:
    """The parameters in a path."""
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
