"""POST /async_predict: keep a request for any route of this server and answer with its id.

https://docs.baseten.co/inference/async. `route` is ours, and so are bodies of over 256 KiB. A hot route, in front of
FastAPI: to keep a request must not cost a frontend more than to answer it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from server.dialects.reading.json_body import LosslessDecoder, parse
from server.dialects.route import Answer
from server.dialects.table import ROUTES
from server.features.jobs.messages import MAX_BODY_BYTES
from server.features.rpc import Caller
from server.http.request import HeaderList, PassOn, Read
from server.requests.errors import InvalidRequest, MalformedBody, PayloadTooLarge

PLACE = ("POST", "/async_predict")
_ROUTES = frozenset(route.path for route in ROUTES)
_DEFAULT_ROUTE = "/invocations"  # does what the fields of the body ask for
_KEY = re.compile(rb"[!-~]{1,255}")
_MAX_ACCEPT = 256  # characters


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
        """As PassedOn has it."""
        return self._answer if (method, path) == PLACE else None

    async def _answer(self, read: Read, headers: HeaderList, owner: str) -> Answer:
        """Raises RequestError; then nothing was accepted."""
        by_name = dict(headers)
        if int(by_name.get(b"content-length", b"0")) > MAX_BODY_BYTES:
            raise _too_large()
        keys = [value for name, value in headers if name == b"idempotency-key"]
        fields = _fields(await read(_decode), by_name, keys)
        added = (await self._jobs.call("add", owner, **fields)).value
        body = msgspec.json.encode(Accepted(added["request_id"]))
        return Answer(202, [(b"content-type", b"application/json")], body)


def _decode(body: bytes) -> AsyncPredictBody:
    """Raises MalformedBody, InvalidRequest and PayloadTooLarge."""
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
    """As the jobs process takes them. Raises InvalidRequest."""
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
