"""/vertex, text-embeddings-inference's route for Vertex AI: several bodies of other routes, answered together."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from server.dialects.choice import Chosen, decode_as, encode, other_error_shapes, run
from server.dialects.reading.inputs import beside_texts, check_num_items
from server.dialects.reading.json_body import parse
from server.dialects.reading.known_fields import BodyReader
from server.dialects.route import Answer, Call, Route
from server.dialects.tei.root import BODIES, Choose, chooser
from server.dialects.tei.shared import tei_error, timing_headers
from server.dialects.writing.forms import Container
from server.dialects.writing.rows import as_list
from server.requests.admission.joint_room import JointRoom
from server.requests.errors import EmptyInput, InvalidRequest, RequestError
from server.requests.pipeline import BULK_ITEMS, Pipeline
from server.requests.trace import Trace
from wire.vocabulary import RequestClass

_BODIES = {
    "type": "array",
    "items": {"anyOf": [{"$ref": f"#/components/schemas/{body.__name__}"} for body in BODIES]},
    "description": "each a body of POST /invocations; no raw bytes",
}
_NO_PARAMETERS = re.compile(rb"null|\{\s*\}")
_JSON = (b"content-type", b"application/json")


class VertexBody(msgspec.Struct):
    """The body of POST /vertex."""

    instances: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_BODIES)]
    parameters: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object", "maxProperties": 0})] = (
        msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    )  # none are known


class _AnyObject(msgspec.Struct):
    """Whose fields are passed over."""


_BODY = BodyReader(VertexBody)
_OBJECT_LIST = msgspec.json.Decoder(list[_AnyObject])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class _Instance:
    """One of the bodies, as a request of its own."""

    call: Call
    chosen: Chosen


def vertex_routes(routes: Iterable[Route]) -> tuple[Route, ...]:
    """`routes` are those that instances can be for."""
    choose = chooser(routes, has_hugging_faces=False)

    def decode(call: Call, body: bytes) -> list[_Instance]:
        fields = _BODY.read(body)
        if not _NO_PARAMETERS.fullmatch(bytes(fields.parameters)):
            raise InvalidRequest(
                "parameters is not supported; put what POST /invocations takes, such as dimensions and truncate, into "
                "the instances",
                param="parameters",
            )
        bodies = _split(fields.instances, max_items=call.max_items)
        return _decode_all(call, bodies, choose)

    return (
        Route(
            path="/vertex",
            decode=decode,
            run=_run,
            encode=_encode,
            error_shape=tei_error,
            other_error_shapes=other_error_shapes(routes),
            summary="Answer several bodies of POST /invocations at once, as Vertex AI sends them",
            body=VertexBody,
            example={"instances": [{"inputs": "The ferry leaves at seven."}]},
            answers=(VertexAnswer,),
        ),
    )


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


def _decode_all(call: Call, bodies: Sequence[msgspec.Raw], choose: Choose) -> list[_Instance]:
    """Instances are of one class of work, as if they were the items of one request."""
    is_bulk = len(bodies) > BULK_ITEMS
    request_class = RequestClass.BULK if is_bulk else call.options.request_class
    options = replace(call.options, request_class=request_class, accepts=Container.JSON)
    found, num_items = list[_Instance](), 0
    for index, body in enumerate(map(bytes, bodies)):
        trace = Trace(call.trace.method, call.trace.route, call.trace.request_id, key=call.trace.key)
        own = replace(call, options=options, trace=trace, form=None)
        try:
            instance = _Instance(own, decode_as(choose(own, body), own, body))
            if own.form and own.form.has_rows_alone:
                raise InvalidRequest("encoding_format must not be bytes here", param="encoding_format")
            trace.encoding = own.form.label if own.form else ""
        except RequestError as error:
            raise _of_instance(error, index) from None
        num_items += instance.chosen.request.num_items
        check_num_items(num_items, "instances", max_items=call.max_items)
        found.append(instance)
    return found


def _of_instance(error: RequestError, index: int) -> RequestError:
    """The same error, with the instance named."""
    name = f"instances[{index}]"
    param = f"{name}.{error.param}" if error.param else name
    return type(error)(f"{name}: {error.message}", param=param, retry_after=error.retry_after, reason=error.reason)


async def _run(pipeline: Pipeline, instances: list[_Instance], trace: Trace) -> list[Any]:
    """Results in order. The first error ends the others. They take room for their rows as one."""
    parts, room = [each.call.trace for each in instances], JointRoom(len(instances))
    for part in parts:
        part.joint_room = room
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_run_one(pipeline, each, index)) for index, each in enumerate(instances)]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        trace.held = room.held
        _sum_up(trace, parts)
    return [task.result() for task in tasks]


async def _run_one(pipeline: Pipeline, instance: _Instance, index: int) -> Any:
    trace = instance.call.trace
    try:
        result = await run(pipeline, instance.chosen, trace)
    except RequestError as error:
        raise _of_instance(error, index) from None
    if trace.joint_room is not None:  # it has computed nothing
        trace.joint_room.needs_none()
    return result


def _sum_up(trace: Trace, parts: Sequence[Trace]) -> None:
    """What is known of the whole request."""
    first = parts[0]
    trace.model, trace.stage = first.model, first.stage
    trace.request_class = "bulk" if any(part.request_class == "bulk" for part in parts) else first.request_class
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


async def _encode(call: Call, instances: list[_Instance], results: list[Any]) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    found = []
    for instance, result in zip(instances, results, strict=True):
        answer = await encode(instance.call, instance.chosen, result)
        found.append(bytes(answer.body))
    content = b'{"predictions":%b}' % as_list(found)
    truncated = (b"x-embedline-truncated-inputs", b"%d" % call.trace.num_truncated)
    return Answer(200, [_JSON, truncated, *timing_headers(call.trace)], content)
