"""Routes that stand for others: the body's fields, or the model's task, say which of them answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from server.dialects.reading.json_body import parse
from server.dialects.route import Answer, Call, ErrorShape, Route
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace


@dataclass(frozen=True, slots=True)
class Chosen:
    """What another route made of the body."""

    route: Route
    request: Any


def decode_as(route: Route, call: Call, body: bytes) -> Chosen:
    """Errors get this route's shape. Raises RequestError."""
    call.error_shape = route.error_shape
    return Chosen(route, route.decode(call, body))


async def run(pipeline: Pipeline, chosen: Chosen, trace: Trace) -> Any:
    """As the route that was chosen."""
    return await chosen.route.run(pipeline, chosen.request, trace)


async def encode(call: Call, chosen: Chosen, result: Any) -> Answer:
    """As the route that was chosen."""
    return await chosen.route.encode(call, chosen.request, result)


def other_error_shapes(routes: Iterable[Route]) -> tuple[ErrorShape, ...]:
    """Of all routes that may be chosen, each once."""
    return tuple(dict.fromkeys(shape for route in routes for shape in route.all_error_shapes))


def by_field(routes: Mapping[str, Route]) -> Route:
    """A route with the path of the first of `routes`: the first whose field the body has, else the first."""
    usual, *others = routes.values()
    marks = [(name, msgspec.Raw, msgspec.field(default_factory=_null)) for name in routes]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Marks", marks))

    def decode(call: Call, body: bytes) -> Chosen:
        given = msgspec.structs.asdict(parse(decoder, body))
        route = next((routes[name] for name, value in given.items() if bytes(memoryview(value)[:4]) != b"null"), usual)
        return decode_as(route, call, body)

    different = list({id(route): route for route in others}.values())
    return replace(
        usual,
        other_error_shapes=other_error_shapes(different),
        decode=decode,
        run=run,
        encode=encode,
        summary="; ".join((usual.summary, *(route.summary for route in different))),
        more_bodies=(*usual.more_bodies, *(body for route in different for body in route.bodies)),
        answers=(*usual.answers, *(answer for route in different for answer in route.answers)),
    )


def _null() -> msgspec.Raw:
    return msgspec.Raw(b"null")
