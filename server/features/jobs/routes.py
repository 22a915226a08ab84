"""The routes of async requests: POST /async_predict keeps one for any route of this server and answers with its id; the
others are what became of it, its result, its end, and the queue: https://docs.baseten.co/inference/async

`route` is ours, and so are bodies of over 256 KiB. JOB_ROUTES has the routes of files and batches too.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from server.dialects import table
from server.dialects.answers import Answer, Streamed, json_answer, retry_header
from server.dialects.reading.json_body import LosslessDecoder, parse
from server.dialects.route import OBJECT, Call, Response
from server.features.jobs.batch_routes import BATCH_ROUTES, job_route, pieces
from server.features.jobs.feature import JOBS
from server.features.jobs.types import Status
from server.features.rpc import Caller, Reply
from server.frontend.parts import Part, Shared, bound
from server.frontend.start import FeatureStart
from server.http.body import ASGIApp
from server.http.request import HttpRequest
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

MAX_BODY_BYTES = 4 << 20  # more belongs into a batch
_ROUTES = frozenset(route.path for route in table.ROUTES)
_DEFAULT_ROUTE = "/invocations"  # does what the fields of the body ask for
_KEY = re.compile(rb"[!-~]{1,255}")
_MAX_ACCEPT = 256  # characters

_UNENDED = ("QUEUED", "IN_PROGRESS")
_ASK_AGAIN = retry_header(RETRY_AFTER["no_result_yet"])


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


async def accept_request(jobs: Caller, call: HttpRequest) -> Answer:
    """Keep a request. Raises RequestError."""
    if int(call.headers.get(b"content-length", b"0")) > MAX_BODY_BYTES:
        raise _too_large()
    keys = [value for name, value in call.scope["headers"] if name == b"idempotency-key"]
    fields = _fields(await call.read(_decode, goes_on=True), call.headers, keys)
    added = (await jobs.call("add", call.owner, **fields)).value
    return json_answer(Accepted(added["request_id"]), status=202)


def _decode(call: Call, body: bytes) -> AsyncPredictBody:
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
        self.routes = bound(JOB_ROUTES, client)
        self._client = client

    async def open(self, app: ASGIApp) -> None:
        self._client.open()

    def close(self) -> None:
        self._client.close()


def make_part(start: FeatureStart, shared: Shared) -> JobsPart:
    """The part of jobs in a frontend."""
    assert start.process is not None
    shared.keys.let_act(start.process.secret)
    return JobsPart(Caller(start.process.path, JOBS.name), [socket.socket(fileno=start.process.listener_fd)])


async def view(jobs: Caller, call: HttpRequest) -> Answer:
    """Status, webhook's status, times and errors."""
    return json_answer(_shown((await _asked(jobs, "view", call)).value))


async def result(jobs: Caller, call: HttpRequest) -> Answer | Streamed:
    """What the route answered, byte for byte and a piece at a time; 202 until then."""
    first = await _asked(jobs, "result", call)
    found = first.value.get("result")
    if found is None:
        shown = first.value["view"]
        if shown["status"] in _UNENDED:
            return json_answer(_shown(shown), _ASK_AGAIN, status=202)
        raise Conflict(f"this request has no result: its status is {shown['status']}")
    given = {**dict(found["headers"]), "content-type": found["content_type"]}
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]

    async def more(offset: int) -> Buffer:
        return (await _asked(jobs, "result", call, offset=offset)).body

    return Streamed(found["status_code"], headers, found["bytes"], pieces(first.body, found["bytes"], more))


async def cancel(jobs: Caller, call: HttpRequest) -> Answer:
    """Only while it is QUEUED."""
    fields = (await _asked(jobs, "cancel", call)).value
    if not fields["canceled"]:
        raise Conflict(f"only a request that is QUEUED can be canceled, and this one is {fields['view']['status']}")
    return json_answer({**_shown(fields["view"]), "canceled": True})


async def queue_status(jobs: Caller, call: HttpRequest) -> Answer:
    """In Baseten's words."""
    counts = (await _asked(jobs, "counts", call)).value
    return json_answer(
        {
            "model_id": "embedline",
            "deployment_id": "embedline",
            "num_queued_requests": sum(counts["queued"]),
            "num_in_progress_requests": counts["in_progress"],
        }
    )


async def all_jobs(jobs: Caller, call: HttpRequest) -> Answer:
    """What waits, by priority, how long, and how much room it takes; the batches that are open, and the files."""
    counts = (await _asked(jobs, "counts", call)).value
    queued = {str(priority): number for priority, number in enumerate(counts.pop("queued"))}
    documents = (await _asked(jobs, "document_counts", call)).value
    return json_answer({"queued": queued, **counts, **documents})


async def _asked(jobs: Caller, what: str, call: HttpRequest, **fields: Any) -> Reply:
    return await jobs.call(what, call.owner, **call.path_values, **fields)


def _shown(view: dict[str, Any]) -> dict[str, Any]:
    """The request as Baseten shows it, with route and priority beside it."""
    times = {name: datetime.fromtimestamp(view[name], UTC).isoformat() for name in ("created_at", "status_at")}
    return {**view, "model_id": "embedline", "deployment_id": "embedline", **times}


_VIEW = {
    "type": "object",
    "properties": {"request_id": {"type": "string"}, "status": {"enum": [status.value for status in Status]}},
    "required": ["request_id", "status"],
}
_VIEW_CONTENT = {"application/json": {"schema": _VIEW}}
_THERE = {200: Response("It is there", _VIEW_CONTENT)}
_UNENDED_TOO = {200: Response("It is there", OBJECT), 202: Response("It has not ended yet", _VIEW_CONTENT)}
_NUMBERS = {200: Response("The numbers", OBJECT)}
_OF_A_BODY = (MalformedBody, InvalidRequest, PayloadTooLarge, UnsupportedMedia, Overloaded)
_KEPT = {202: Response("It is kept", Accepted)}
_OF_ONE = (NoSuchRoute, NotFound, Conflict)
_EXAMPLE = {"model_input": {"input": "The ferry leaves at seven.", "model": "any"}, "priority": 1}
_KEY_HEADER = {
    "name": "idempotency-key",
    "in": "header",
    "required": False,
    "description": "A second request with the same key and body is answered with the first one's id",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


_ONE = "/async_request/{request_id}"
#: as the OpenAPI page has them; in a frontend, each with the client of its process before its call
JOB_ROUTES = (
    job_route(
        "POST", "/async_predict", accept_request, responses=_KEPT, errors=(NoSuchRoute, Conflict, *_OF_A_BODY),
        body=AsyncPredictBody, example=_EXAMPLE, parameters=(_KEY_HEADER,),
    ),
    job_route("GET", _ONE, view, responses=_THERE, errors=_OF_ONE, description=view.__doc__),
    job_route(
        "GET", f"{_ONE}/result", result, responses=_UNENDED_TOO, errors=_OF_ONE, description=result.__doc__
    ),
    job_route("DELETE", _ONE, cancel, responses=_THERE, errors=_OF_ONE, description=cancel.__doc__),
    job_route(
        "GET", "/async_queue_status", queue_status, responses=_NUMBERS, errors=(NoSuchRoute,),
        description=queue_status.__doc__,
    ),
    job_route("GET", "/jobs", all_jobs, responses=_NUMBERS, errors=(NoSuchRoute,), description=all_jobs.__doc__),
    *BATCH_ROUTES,
)  # fmt: skip
