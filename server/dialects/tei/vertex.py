"""/vertex, text-embeddings-inference's route for Vertex AI: several bodies of other routes, answered together."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from server.dialects.choice import Chosen, decode_as, encode, other_error_shapes, run
from server.dialects.reading.inputs import check_num_items
from server.dialects.reading.known_fields import BodyReader
from server.dialects.route import Answer, Call, Route
from server.dialects.tei.root import Choose, chooser
from server.dialects.tei.shared import tei_error, timing_headers
from server.dialects.writing.forms import Container
from server.dialects.writing.rows import as_list
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody, RequestError
from server.requests.pipeline import BULK_ITEMS, Pipeline
from server.requests.trace import Trace
from wire.vocabulary import RequestClass

_OBJECTS = {"type": "array", "items": {"type": "object"}, "minItems": 1}
_JSON = (b"content-type", b"application/json")
_GAPS = " \t\n\r"


class VertexBody(msgspec.Struct):
    """The body of POST /vertex."""

    instances: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_OBJECTS)]  # each a body of POST /invocations
    parameters: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})] = msgspec.field(
        default_factory=lambda: msgspec.Raw(b"null")
    )  # none are known


_BODY = BodyReader(VertexBody)


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
        if bytes(fields.parameters) not in (b"null", b"{}"):
            raise InvalidRequest("parameters is not supported; put its fields into the instances", param="parameters")
        bodies = _split(bytes(fields.instances), max_items=call.max_items)
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


def _split(instances: bytes, *, max_items: int) -> list[bytes]:
    """The items of a JSON list, one after the other, so that a list of millions is refused after a few of them."""
    try:
        text = instances.decode()
    except UnicodeDecodeError:
        raise MalformedBody("instances is not valid JSON in UTF-8", param="instances") from None
    scanner, found, at = json.JSONDecoder(), list[bytes](), 1
    if not text.startswith("["):
        raise InvalidRequest("instances must be a list of objects", param="instances")
    while True:
        at = _after_gaps(text, at)
        if text[at] == "]":
            break
        if text[at] == ",":
            at = _after_gaps(text, at + 1)
        try:
            end = scanner.raw_decode(text, at)[1]
        except (ValueError, RecursionError):
            raise MalformedBody("instances can't be read", param="instances") from None
        found.append(text[at:end].encode())
        check_num_items(len(found), "instances", max_items=max_items)
        at = end
    if not found:
        raise EmptyInput("instances must not be empty", param="instances")
    return found


def _after_gaps(text: str, at: int) -> int:
    while text[at] in _GAPS:
        at += 1
    return at


def _decode_all(call: Call, bodies: list[bytes], choose: Choose) -> list[_Instance]:
    """Instances are of one class of work, as if they were the items of one request."""
    is_bulk = len(bodies) > BULK_ITEMS
    request_class = RequestClass.BULK if is_bulk else call.options.request_class
    options = replace(call.options, request_class=request_class, accepts=Container.JSON)
    found, num_items = list[_Instance](), 0
    for index, body in enumerate(bodies):
        trace = Trace(call.trace.method, call.trace.route, call.trace.request_id, key=call.trace.key)
        own = Call(options, call.models, call.max_items, trace, call.error_shape)
        try:
            instance = _Instance(own, decode_as(choose(own, body), own, body))
            if own.form and own.form.has_rows_alone:
                raise InvalidRequest("encoding_format must not be bytes here", param="encoding_format")
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
    """Results in order. The first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_run_one(pipeline, each, index)) for index, each in enumerate(instances)]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        _sum_up(trace, [each.call.trace for each in instances])
    return [task.result() for task in tasks]


async def _run_one(pipeline: Pipeline, instance: _Instance, index: int) -> Any:
    try:
        return await run(pipeline, instance.chosen, instance.call.trace)
    except RequestError as error:
        raise _of_instance(error, index) from None


def _sum_up(trace: Trace, parts: list[Trace]) -> None:
    """What is known of the whole request."""
    first = parts[0]
    trace.model, trace.stage, trace.request_class = first.model, first.stage, first.request_class
    trace.is_prediction = any(part.is_prediction for part in parts)
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
