"""POST / and /invocations: the route that the body's fields ask for, else the one for the model's task.

text-embeddings-inference has both, for SageMaker, and knows `inputs` and `query`; vLLM has /invocations, and knows
`input`, `messages`, `query` and `queries`. Hugging Face's clients post to / and expect shapes of their own.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from engine.model.tasks import Task
from server.dialects import huggingface, openai
from server.dialects.choice import Chosen, decode_as, encode, other_error_shapes, run
from server.dialects.reading.json_body import parse
from server.dialects.reading.known_fields import BodyReader
from server.dialects.rerank import bodies as rerank
from server.dialects.route import Call, Route
from server.dialects.tei.embed import EmbedBody, SimilarityBody
from server.dialects.tei.shared import tei_error
from server.dialects.vllm import score
from server.dialects.writing.forms import Container
from server.dialects.writing.rows import ROWS

_BY_TASK = {
    Task.CLASSIFY: "/predict",
    Task.RERANK: "/predict",
    Task.TOKEN_CLASSIFY: "/predict_tokens",
    Task.SPARSE: "/embed_sparse",
    Task.LATE_INTERACTION: "/embed_all",
}
_BY_TASK_AT_VLLM = {
    Task.EMBED: "/v1/embeddings",
    Task.CLASSIFY: "/v1/classify",
    Task.RERANK: "/v1/classify",
}
_HUGGING_FACE = {
    Task.CLASSIFY: huggingface.TEXT_CLASSIFICATION,
    Task.RERANK: huggingface.TEXT_CLASSIFICATION,
    Task.TOKEN_CLASSIFY: huggingface.TOKEN_CLASSIFICATION,
}
_TEIS = ("raw_scores", "truncate", "truncation_direction", "aggregation_strategy")


class RootBody(EmbedBody, kw_only=True):
    """The body of POST /: the fields of the route that it picks. Only the OpenAPI page reads this type."""

    parameters: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})] = msgspec.field(
        default_factory=lambda: msgspec.Raw(b"null")
    )  # of Hugging Face's clients; other routes have those that they take at the top


BODIES: tuple[type[msgspec.Struct], ...] = (
    RootBody,
    SimilarityBody,
    *openai.ROUTES[0].bodies,
    *rerank.BODIES,
    *score.BODIES,
)
_MARKS = ("inputs", "parameters", "input", "messages", "query", "queries", "data_1", "text_1", *_TEIS)
_Marks = msgspec.defstruct(
    "Marks", [("model", str | None, None), *((name, msgspec.Raw | UnsetType, UNSET) for name in _MARKS)]
)
_DECODER = msgspec.json.Decoder(_Marks)


class _NoParameters(msgspec.Struct):
    """What routes take that have their parameters at the top."""


_NO_PARAMETERS = BodyReader(_NoParameters)

Choose = Callable[[Call, bytes], Route]  # raises RequestError


def chooser(routes: Iterable[Route], *, has_hugging_faces: bool) -> Choose:
    """What says which of `routes` answers a body, perhaps with a single text as Hugging Face's clients send it."""
    by_path = {route.path: route for route in routes}

    def choose(call: Call, body: bytes) -> Route:
        marks = parse(_DECODER, body)
        fields: dict[str, Any] = msgspec.structs.asdict(marks)
        task = call.models.choose(fields["model"], with_prompt=True).task
        given = {name: bytes(fields[name]) for name in _MARKS if fields[name] is not UNSET}
        given = {name: value for name, value in given.items() if value != b"null"}
        if _is_hugging_faces(given, call, takes_texts=has_hugging_faces) and task in _HUGGING_FACE:
            return _HUGGING_FACE[task]
        return by_path[_path(task, given)]

    return choose


def _is_hugging_faces(given: dict[str, bytes], call: Call, *, takes_texts: bool) -> bool:
    if "parameters" in given:
        return True
    is_text = given.get("inputs", b"").startswith(b'"') and given.keys().isdisjoint(_TEIS)
    return takes_texts and is_text and call.options.accepts is Container.JSON


def _path(task: Task, given: dict[str, bytes]) -> str:
    """Raises InvalidRequest for parameters that the route would not see."""
    if task not in _BY_TASK and given.get("inputs", b"").startswith(b"{"):
        return "/similarity"
    if "parameters" in given:
        _NO_PARAMETERS.read(given["parameters"], "parameters")
    if "inputs" in given:
        return _BY_TASK.get(task, "/embed")
    if "query" in given:
        return "/rerank"
    if not given.keys().isdisjoint(("queries", "data_1", "text_1")):
        return "/score"
    if "input" in given or "messages" in given:
        return _BY_TASK_AT_VLLM.get(task, "/pooling")
    return _BY_TASK.get(task, "/embed")


def root_routes(routes: Iterable[Route]) -> tuple[Route, ...]:
    """The two of them; `routes` are the others."""

    def route(path: str) -> Route:
        choose = chooser(routes, has_hugging_faces=path == "/")

        def decode(call: Call, body: bytes) -> Chosen:
            return decode_as(choose(call, body), call, body)

        return Route(
            path=path,
            decode=decode,
            run=run,
            encode=encode,
            error_shape=tei_error,
            other_error_shapes=other_error_shapes(routes),
            summary="Do what the body asks for, or what the model is for: embed, compare, classify, score or rerank",
            body=BODIES[0],
            more_bodies=BODIES[1:],
            example={"inputs": "The ferry leaves at seven."},
            answers=(list[Any], dict[str, Any]),
            raw_answer=ROWS,
        )

    return tuple(route(path) for path in ("/", "/invocations"))
