"""POST / and /invocations, as text-embeddings-inference has them for SageMaker: what they do is the model's to say.

Embedding models are answered here, others by the route that is theirs.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from engine.model.tasks import Task
from server.dialects.reading.json_body import parse
from server.dialects.tei.bodies import AnyBody, decode_any
from server.dialects.tei.embed import embed
from server.http.body import Message
from server.http.route import Answer, Call, Route
from server.requests.errors import tei_answer
from server.requests.models import ServedModel

_BY_TASK = {
    Task.CLASSIFY: "/predict",
    Task.TOKEN_CLASSIFY: "/predict_tokens",
    Task.SPARSE: "/embed_sparse",
    Task.LATE_INTERACTION: "/embed_all",
}
_ROWS: dict[str, Any] = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}


class _Sign(msgspec.Struct):
    """What tells the models and the routes apart."""

    model: str | None = None
    inputs: msgspec.Raw = msgspec.Raw()


_SIGN = msgspec.json.Decoder(_Sign)


def root_routes(routes: Iterable[Route]) -> tuple[Route, ...]:
    """The two of them; `routes` are the others, to choose from."""
    by_path = {route.path: route for route in routes}
    return tuple(
        Route(
            path=path,
            handler=partial(answer, by_path=by_path),
            error_shape=tei_answer,
            summary="What the model is for: embeddings, similarities where `inputs` is an object with a source "
            "sentence, or what the route for its task answers",
            body=AnyBody,
            responses={
                "application/json": {"anyOf": [_ROWS, {"type": "array"}]},
                "application/octet-stream": {"type": "string", "format": "binary"},
            },
        )
        for path in ("/", "/invocations")
    )


async def answer(call: Call, *, by_path: dict[str, Route]) -> Answer:
    """POST / and /invocations."""
    if all(model.task is Task.EMBED for model in call.models.models):
        return await embed(call, decode_any)
    body = await call.body()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    same = replace(call, receive=receive)
    sign = parse(_SIGN, body)
    path = _path(call.models.choose(sign.model), sign)
    return await (embed(same, decode_any) if path is None else by_path[path].handler(same))


def _path(model: ServedModel, sign: _Sign) -> str | None:
    """Of the route for the model's task; None = none but this one."""
    if model.task is Task.RERANK:
        return "/predict" if bytes(sign.inputs) else "/rerank"
    return _BY_TASK.get(model.task)
