"""The body of a webhook, as Baseten has it: made of what the store keeps, so the same bytes on each attempt."""

import base64
from datetime import UTC, datetime

import msgspec

from server.jobs.types import Delivery, Result

MAX_DATA_BYTES = 4 << 20  # of a result; a larger one is fetched by its owner


def webhook_body(delivery: Delivery, *, model_id: str, deployment_id: str) -> bytes:
    """JSON without spaces.

    `data` is the route's answer. An answer that is not JSON is an object with `content_type` and `base64`; one of more
    than MAX_DATA_BYTES is an object with `bytes` and the `path` where its owner gets it.
    """
    body = {
        "request_id": delivery.request_id,
        "model_id": model_id,
        "deployment_id": deployment_id,
        "type": "async_request_completed",
        "time": datetime.fromtimestamp(delivery.ended_at, UTC),
        "data": _data(delivery.request_id, delivery.result),
        "errors": [{"code": error.code, "message": error.message} for error in delivery.errors],
    }
    return msgspec.json.encode(body)


def _data(request_id: str, result: Result | None) -> object:
    if result is None:
        return None
    if len(result.body) > MAX_DATA_BYTES:
        return {"bytes": len(result.body), "path": f"/async_request/{request_id}/result"}
    if result.content_type.partition(";")[0].strip() == "application/json":
        return msgspec.Raw(result.body)
    return {"content_type": result.content_type, "base64": base64.b64encode(result.body).decode()}
