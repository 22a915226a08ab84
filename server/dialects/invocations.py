"""Routes that stand for others: the body's fields, or the model's task, say which of them answers.

POST / and /invocations are the route that the body's fields ask for, else the one for the model's task.
text-embeddings-inference has both, for SageMaker, and knows `inputs` and `query`; vLLM has /invocations, and knows
`input`, `messages`, `query` and `queries`. Hugging Face's clients post to / and expect shapes of their own. /vertex is
text-embeddings-inference's route for Vertex AI: several bodies of other routes, answered together.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import msgspec

from engine.model.tasks import Task
from server.dialects import openai, rerank, vllm
from server.dialects.answers import JSON, Answer, ErrorShape
from server.dialects.fields.field import Fields, item_field, names_of, passed_over
from server.dialects.fields.request import AggregationField, ModelField, RawScoresField
from server.dialects.fields.rows import ENCODING_FORMAT
from server.dialects.fields.texts import TeisTruncationFields
from server.dialects.reading.inputs import beside_texts, check_num_items
from server.dialects.reading.json_body import NOT_GIVEN, FieldsReader, given_members, parse
from server.dialects.route import Call, Route, Stages
from server.dialects.row_answers import NO_ROWS, ROWS, Container, as_list
from server.dialects.tei import EmbedBody, SimilarityBody, tei_error, timing_headers
from server.requests.errors import EmptyInput, InvalidRequest, RequestError
from server.requests.models import LORA_PATH
from server.requests.pipeline import BULK_ITEMS, Pipeline
from server.requests.row_memory import MemoryOfParts
from server.requests.work import RequestContext, Trace
from wire.vocabulary import RequestClass


def _error_shapes(routes: Iterable[Route]) -> tuple[ErrorShape, ...]:
    return tuple(dict.fromkeys(shape for route in routes for shape in route.all_error_shapes))


def by_field(routes: Mapping[str, Route]) -> Route:
    """A route with the path of the first of `routes`: the first whose field the body has, else the first."""
    usual, *others = routes.values()

    def choose(call: Call, body: bytes) -> Route:
        return next((routes[name] for name in given_members(body, tuple(routes))), usual)

    different = list({id(route): route for route in others}.values())
    return replace(
        usual,
        other_error_shapes=_error_shapes(different),
        choose=choose,
        summary="; ".join((usual.summary, *(route.summary for route in different))),
        more_bodies=(*usual.more_bodies, *(body for route in different for body in route.bodies)),
        answers=(*usual.answers, *(answer for route in different for answer in route.answers)),
    )


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
_TEIS = names_of(RawScoresField, TeisTruncationFields, AggregationField)


class RootBody(EmbedBody, kw_only=True):
    """The body of POST /: the fields of the route that it picks. Only the OpenAPI page reads this type."""

    parameters: Annotated[
        msgspec.Raw, passed_over("the options of the task", schema={"type": "object"}, changes_result=True)
    ] = NOT_GIVEN  # of Hugging Face's clients; other routes have those that they take at the top


BODIES: tuple[type[msgspec.Struct], ...] = (
    RootBody,
    SimilarityBody,
    *openai.ROUTES[0].bodies,
    *rerank.ROUTES[0].bodies,
    *vllm.ROUTES[0].bodies,
)
_MARKS = (
    "model",
    LORA_PATH,
    "inputs",
    "parameters",
    "input",
    "messages",
    "query",
    "queries",
    "data_1",
    "text_1",
    *_TEIS,
)
_MODEL, _LORA = msgspec.json.Decoder(str | None), msgspec.json.Decoder(str | list[str | None] | None)


class _NoFields(msgspec.Struct):
    """An object whose fields are passed over, but for those that another route honours where it is read as fields."""


_PARAMETERS = FieldsReader(_NoFields)

ByTask = Mapping[Task, Route]  # what Hugging Face's clients ask of a model for this task


def _chooser(routes: Iterable[Route], hugging_faces: ByTask, *, takes_texts: bool) -> Callable[[Call, bytes], Route]:
    """A function that says which of the routes answers a body, perhaps with a single text as Hugging Face's clients
    send it."""
    by_path = {route.path: route for route in routes}

    def choose(call: Call, body: bytes) -> Route:
        given = {name: bytes(value) for name, value in given_members(body, _MARKS).items()}
        model = parse(_MODEL, given.pop("model", b"null"), "model")
        lora = parse(_LORA, given.pop(LORA_PATH, b"null"), LORA_PATH)
        task = call.choose(ModelField(model=model, lora_path=lora), with_prompt=True).task
        if _is_hugging_faces(given, call, takes_texts=takes_texts) and task in hugging_faces:
            return hugging_faces[task]
        return by_path[_path(task, given)]

    return choose


def _is_hugging_faces(given: dict[str, bytes], call: Call, *, takes_texts: bool) -> bool:
    if "parameters" in given:
        return True
    is_text = given.get("inputs", b"").startswith(b'"') and given.keys().isdisjoint(_TEIS)
    return takes_texts and is_text and call.options.accepts is Container.JSON


def _path(task: Task, given: dict[str, bytes]) -> str:
    """The path of the route that is asked for. Raises InvalidRequest for parameters that the route would not see."""
    if task not in _BY_TASK and given.get("inputs", b"").startswith(b"{"):
        return "/similarity"
    if "parameters" in given:
        _PARAMETERS.read(given["parameters"], "parameters")
    if "inputs" in given:
        return _BY_TASK.get(task, "/embed")
    if "query" in given:
        return "/rerank"
    if not given.keys().isdisjoint(("queries", "data_1", "text_1")):
        return "/score"
    if "input" in given or "messages" in given:
        return _BY_TASK_AT_VLLM.get(task, "/pooling")
    return _BY_TASK.get(task, "/embed")


_INSTANCES = {
    "type": "array",
    "items": {"anyOf": [{"$ref": f"#/components/schemas/{body.__name__}"} for body in BODIES]},
    "description": "each a body of POST /invocations; no raw bytes",
}
_NO_PARAMETERS = re.compile(rb"null|\{\s*\}")


class VertexBody(Fields):
    """The body of POST /vertex."""

    instances: Annotated[msgspec.Raw, item_field("several bodies", _INSTANCES)]
    parameters: Annotated[
        msgspec.Raw, passed_over("refused: none are known", schema={"type": "object", "maxProperties": 0})
    ] = NOT_GIVEN


_OBJECT_LIST = msgspec.json.Decoder(list[_NoFields])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class _Instance:
    """One of the bodies, as a request of its own."""

    call: Call
    request: Any
    whole: RequestContext  # of the request that it is a part of


def invocation_routes(routes: Iterable[Route], hugging_faces: ByTask) -> tuple[Route, ...]:
    """The routes that stand for `routes`: POST /, /invocations and /vertex."""
    shapes = _error_shapes(routes)
    root, invocations = (
        Route(
            path=path,
            choose=_chooser(routes, hugging_faces, takes_texts=path == "/"),
            error_shape=tei_error,
            other_error_shapes=shapes,
            summary="Do what the body asks for, or what the model is for: embed, compare, classify, score or rerank",
            body=BODIES[0],
            more_bodies=BODIES[1:],
            answers=(list[Any], dict[str, Any]),
            raw_answer=ROWS,
        )
        for path in ("/", "/invocations")
    )
    vertex = Route(
        path="/vertex",
        stages=Stages(partial(_decode_all, invocations), _run_all, _encode_all),
        error_shape=tei_error,
        other_error_shapes=shapes,
        summary="Answer several bodies of POST /invocations at once, as Vertex AI sends them",
        body=VertexBody,
        example={"instances": [{"inputs": "The ferry leaves at seven."}]},
        answers=(VertexAnswer,),
    )
    return root, invocations, vertex


class VertexAnswer(msgspec.Struct):
    """The answer of POST /vertex."""

    predictions: list[Any]


def _split(instances: msgspec.Raw, *, max_items: int) -> list[msgspec.Raw]:
    """The items of a JSON list of objects. Each route counts what is in its own before it decodes it."""
    raw = bytes(instances)
    if raw.count(b"{") > max_items:  # perhaps in texts
        beside_texts(raw, "instances", max_items=max_items)
    num_instances = len(parse(_OBJECT_LIST, raw, "instances"))  # ends at the first item that is no object
    check_num_items(num_instances, "instances", max_items=max_items)
    if not num_instances:
        raise EmptyInput("instances must not be empty", param="instances")
    return parse(_RAW_LIST, raw, "instances")


def _decode_all(invocations: Route, call: Call, fields: VertexBody) -> list[_Instance]:
    """Instances are of one class of work, as if they were the items of one request."""
    if not _NO_PARAMETERS.fullmatch(bytes(fields.parameters)):
        raise InvalidRequest(
            "parameters is not supported; put what POST /invocations takes, such as dimensions and truncate, into "
            "the instances",
            param="parameters",
        )
    bodies = _split(fields.instances, max_items=call.max_items)
    request_class = RequestClass.BULK if len(bodies) > BULK_ITEMS else call.options.request_class
    options = replace(call.options, request_class=request_class, accepts=Container.JSON)
    found, num_items = list[_Instance](), 0
    for index, body in enumerate(bodies):
        trace = Trace(call.trace.method, call.trace.route, call.trace.request_id, key=call.context.key)
        own = replace(call, options=options, trace=trace, context=RequestContext(call.context.key), form=NO_ROWS)
        try:
            request = invocations.decode(own, bytes(body))
            if own.form.has_rows_alone:
                raise InvalidRequest("encoding_format must not be bytes here", param=ENCODING_FORMAT)
            trace.encoding = own.context.encoding = own.form.label
        except RequestError as error:
            raise _of_instance(error, index) from None
        num_items += request.num_items
        check_num_items(num_items, "instances", max_items=call.max_items)
        found.append(_Instance(own, request, call.context))
    return found


def _of_instance(error: RequestError, index: int) -> RequestError:
    """This error, with the instance named."""
    name = f"instances[{index}]"
    param = f"{name}.{error.param}" if error.param else name
    own_param = f"instances[].{error.own_param}".removesuffix(".")
    message, reason = f"{name}: {error.message}", error.reason
    return type(error)(message, param=param, own_param=own_param, retry_after=error.retry_after, reason=reason)


async def _run_all(pipeline: Pipeline, instances: list[_Instance], trace: Trace) -> list[Any]:
    """The results of the instances, in order. The first error ends the others. They take memory for rows as one."""
    parts, memory = [each.call.trace for each in instances], MemoryOfParts(len(instances))
    for each in instances:
        each.call.context.memory_of_parts = memory
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_run_one(pipeline, each, index)) for index, each in enumerate(instances)]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        whole, classes = instances[0].whole, [each.call.context.request_class for each in instances]
        whole.held, whole.request_class = memory.held, RequestClass.BULK if RequestClass.BULK in classes else classes[0]
        trace.request_class = "" if whole.request_class is None else whole.request_class.name.lower()
        _sum_up(trace, parts)
    return [task.result() for task in tasks]


async def _run_one(pipeline: Pipeline, instance: _Instance, index: int) -> Any:
    context = instance.call.context
    try:
        result = await instance.call.route.stages.run(pipeline, instance.request, instance.call.trace)
    except RequestError as error:
        raise _of_instance(error, index) from None
    if context.memory_of_parts is not None:  # it has computed nothing
        context.memory_of_parts.needs_none()
    return result


def _sum_up(trace: Trace, parts: Sequence[Trace]) -> None:
    """Adds to the whole request's trace what is known of its parts."""
    first = parts[0]
    trace.model, trace.lora, trace.stage = first.model, first.lora, first.stage
    trace.is_prediction = any(part.is_prediction for part in parts)
    trace.are_ids_decoded = any(part.are_ids_decoded for part in parts)
    trace.num_items = sum(part.num_items for part in parts)
    trace.num_characters = sum(part.num_characters for part in parts)
    trace.num_tokens = sum(part.num_tokens for part in parts)
    trace.num_truncated = sum(part.num_truncated for part in parts)
    trace.seqlens = [length for part in parts for length in part.seqlens]
    trace.tokenize_seconds = max(part.tokenize_seconds for part in parts)
    trace.queue_seconds = max(part.queue_seconds for part in parts)
    trace.compute_seconds = max(part.compute_seconds for part in parts)
    trace.responds_since = max(part.responds_since for part in parts)


async def _encode_all(call: Call, instances: list[_Instance], results: list[Any]) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    found = []
    for instance, result in zip(instances, results, strict=True):
        answer = await instance.call.route.stages.encode(instance.call, instance.request, result)
        found.append(bytes(answer.body))
    content = b'{"predictions":%b}' % as_list(found)
    truncated = (b"x-embedline-truncated-inputs", b"%d" % call.trace.num_truncated)
    return Answer(200, [JSON, truncated, *timing_headers(call.trace)], content)
