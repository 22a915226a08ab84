"""POST / and /invocations, as text-embeddings-inference has them for SageMaker: the route for the model's task."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.model.tasks import Task
from server.dialects.reading.json_body import parse
from server.dialects.reading.prompts import PromptFields
from server.dialects.route import Answer, Call, Route
from server.dialects.tei.embed import EmbedBody
from server.dialects.tei.shared import tei_error
from server.dialects.writing.rows import ROWS
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace

_BY_TASK = {
    Task.CLASSIFY: "/predict",
    Task.TOKEN_CLASSIFY: "/predict_tokens",
    Task.SPARSE: "/embed_sparse",
    Task.LATE_INTERACTION: "/embed_all",
}


class RootBody(EmbedBody, kw_only=True):
    """The body of POST /: the fields of the route that it picks. Only the OpenAPI page reads this type."""

    parameters: PromptFields | None = None  # of a similarity


class _Marks(msgspec.Struct):
    """The fields that decide which route it is."""

    model: str | None = None
    inputs: msgspec.Raw = msgspec.Raw()


_MARKS = msgspec.json.Decoder(_Marks)


@dataclass(frozen=True, slots=True)
class _Request:
    """What another route made of the body."""

    route: Route
    request: Any


def root_routes(routes: Iterable[Route]) -> tuple[Route, ...]:
    """The two of them; `routes` are the others."""
    by_path = {route.path: route for route in routes}

    def decode(call: Call, body: bytes) -> _Request:
        marks = parse(_MARKS, body)
        route = by_path[_path(call.models.choose(marks.model), bytes(marks.inputs))]
        return _Request(route, route.decode(call, body))

    return tuple(
        Route(
            path=path,
            decode=decode,
            run=_run,
            encode=_encode,
            error_shape=tei_error,
            other_error_shapes=tuple(
                dict.fromkeys(shape for route in by_path.values() for shape in route.all_error_shapes)
            ),
            summary="Do what the model is for: embed, compare (if `inputs` has a source sentence), classify or rerank",
            body=RootBody,
            example={"inputs": "The ferry leaves at seven."},
            answers=(list[list[float]], list[Any]),
            raw_answer=ROWS,
        )
        for path in ("/", "/invocations")
    )


def _path(model: ServedModel, inputs: bytes) -> str:
    """Of the route for the model's task."""
    if model.task is Task.RERANK:
        return "/predict" if inputs else "/rerank"
    return _BY_TASK.get(model.task) or ("/similarity" if inputs.startswith(b"{") else "/embed")


async def _run(pipeline: Pipeline, chosen: _Request, trace: Trace) -> Any:
    return await chosen.route.run(pipeline, chosen.request, trace)


async def _encode(call: Call, chosen: _Request, result: Any) -> Answer:
    return await chosen.route.encode(call, chosen.request, result)
