"""The pages on the API: the OpenAPI page, made of the routes and their types, and FastAPI's pages that show it.

What errors look like is found out by writing each of them in each dialect's shape.
"""

import inspect
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from embedline import __version__
from server.dialects.answers import Answer, ErrorShape, openai_error
from server.dialects.fields.field import Bounds, refine
from server.dialects.route import Route, Schema
from server.dialects.table import PLAIN_ROUTES, ROUTES
from server.feature import loaded
from server.features.table import FEATURES
from server.http.access import METRICS_PATHS, is_health
from server.http.body import Message
from server.requests.errors import (
    ERRORS,
    BodyTooSlow,
    Conflict,
    Forbidden,
    HeadTooLarge,
    MalformedBody,
    NoSuchRoute,
    NotFound,
    RequestError,
    Unauthorized,
    WrongMethod,
)
from server.requests.models import ModelsState

_CLASS = {"type": "string", "enum": ["interactive", "bulk"]}
_MILLISECONDS = {"type": "integer", "minimum": 1, "maximum": 86_400_000}
_HEADERS = {
    "request-timeout-ms": (_MILLISECONDS, "After so many milliseconds the work is dropped and the answer is 504"),
    "x-embedline-class": (_CLASS, "The default depends on the request's size"),
}
_OF_EVERY_ROUTE: tuple[type[RequestError], ...] = (Unauthorized, Forbidden, WrongMethod)
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Also `Api-Key KEY`, or the key alone"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key", "description": "As Azure's clients send it"},
}
_LINES = "a line for each line of a body that comes as application/x-ndjson: a text, or a body with one input"
_ERRORS_OF_DIALECTS = tuple(
    kind for kind in ERRORS if kind not in (NoSuchRoute, NotFound, Conflict)
)  # these are no dialect's
# Refused before the route is known, in OpenAI's shape on every path.
_BEFORE_A_ROUTE = frozenset((MalformedBody, BodyTooSlow, HeadTooLarge))
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class ApiPages:
    """The pages of one server. The OpenAPI page is made when it is asked for, and anew once the first model is loaded;
    FastAPI answers with those that show it."""

    def __init__(self, state: ModelsState, own: Sequence[Route], *, needs_key: bool, metrics_auth: bool) -> None:
        """`own` are the routes that are neither a dialect's nor a feature's."""
        features = [loaded(feature.documents) for feature in FEATURES if feature.documents]
        self._routes = [*own, *PLAIN_ROUTES, *(route for routes in features for route in routes)]
        self._state = state
        self._needs_key = needs_key
        self._metrics_auth = metrics_auth
        self._app = FastAPI(title="Embedline", version=__version__, description="An embedding inference server")
        self._is_complete = False
        self._written = b""

    def schema(self) -> bytes:
        """The OpenAPI page. It tells the limits of the first model, once that is there."""
        is_complete = self._state.models is not None
        if not self._written or is_complete != self._is_complete:
            self._written, self._is_complete = msgspec.json.encode(self._described(is_complete)), is_complete
        return self._written

    async def page(self, path: str, *, prefix: str) -> Answer:
        """One of FastAPI's own pages, for a browser that finds the server under this prefix."""
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": prefix + path, "root_path": prefix, "headers": []}
        await self._app({**scope, "query_string": b""}, receive, send)
        start, *rest = sent
        headers = [header for header in start["headers"] if header[0] != b"content-length"]
        return Answer(start["status"], headers, b"".join(message["body"] for message in rest))

    def _described(self, is_complete: bool) -> Schema:
        app, state = self._app, self._state
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=())
        components = self._add_routes(schema["paths"])
        first = state.models.models[0] if state.models else None
        bounds = Bounds(state.newest.get("limits", {}).get("max_client_batch_size", 1), first)
        refine(components, [body for route in ROUTES for body in route.bodies], bounds)
        for path, methods in schema["paths"].items():
            for method, operation in methods.items():
                is_open = is_health(method.upper(), path) or (path in METRICS_PATHS and not self._metrics_auth)
                if self._needs_key and not is_open:
                    operation["security"] = [{name: []} for name in _SECURITY]
        components_of_page = {"schemas": components, "securitySchemes": _SECURITY}
        return {**schema, "components": components_of_page, "x-is-complete": is_complete}

    def _add_routes(self, paths: Schema) -> Schema:
        """Adds the operations; returns the schemas that they refer to."""
        routes = [*ROUTES, *(route for route in self._routes if route.is_listed)]
        components: Schema = {}
        for route in routes:
            path = route.path.replace(":path}", "}")
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, components)
        shapes = dict.fromkeys((openai_error, *(shape for route in routes for shape in route.all_error_shapes)))
        components = json.loads(json.dumps(components))  # dialects share parts, which differ from field to field later
        return {**components, **{component_name(shape): schema_of_errors(shape) for shape in shapes}}


def _in_json(kinds: Sequence[Any], components: Schema, **more: Any) -> Schema:
    """The content that is JSON of one of these types, whose parts go into the components."""
    schemas, parts = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components.update(parts)
    return {"application/json": {"schema": _any_of(schemas), **more}}


def _operation(route: Route, path: str, components: Schema) -> Schema:
    operation: Schema = {"summary": route.summary, "operationId": route.operation_id or _operation_id(route, path)}
    if route.description:
        operation["description"] = route.description
    if parameters := _parameters(route, path):
        operation["parameters"] = parameters
    if route.bodies:
        content = _in_json(route.bodies, components, example=route.example)
        operation["requestBody"] = {"required": True, "content": content}
    elif route.body_schema is not None:
        operation["requestBody"] = route.body_schema
    operation["responses"] = (_computed if route.answer is None else _told)(route, components)
    return operation


def _operation_id(route: Route, path: str) -> str:
    plain = path.strip("/").replace(".", "").replace("{", "").replace("}", "")
    return "_".join([route.method.lower(), *plain.split("/")])


def _parameters(route: Route, path: str) -> list[Schema]:
    if route.answer is None:
        return [
            {"name": name, "in": "header", "required": False, "description": text, "schema": kind}
            for name, (kind, text) in _HEADERS.items()
        ]
    told = {parameter["name"] for parameter in route.parameters}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
        if name not in told
    ]
    return [*in_path, *route.parameters]


def _computed(route: Route, components: Schema) -> Schema:
    """The responses of a route that computes."""
    content = _in_json(route.answers, components)
    if route.raw_answer:
        raw = {"type": "string", "format": "binary", "description": route.raw_answer}
        content |= {kind: {"schema": raw} for kind in ("application/octet-stream", "application/x-npy")}
    if route.takes_lines:
        content["application/x-ndjson"] = {"schema": {"type": "string", "description": _LINES}}
    return {
        "200": {"description": "The answer, in the order of the inputs", "content": content},
        **_errors(error_statuses(route.all_error_shapes)),
    }


def _told(route: Route, components: Schema) -> Schema:
    """The responses of any other route."""
    found = _errors(error_statuses([route.error_shape], of=[*_OF_EVERY_ROUTE, *route.errors]))
    for status, (text, content) in route.responses.items():
        if isinstance(content, type):
            content = _in_json([content], components)
        found[str(status)] = {"description": text, **({"content": content} if content is not None else {})}
    return found


def _errors(statuses: dict[str, tuple[list[str], list[str]]]) -> Schema:
    """Responses, out of the descriptions and the components of each status."""
    return {
        status: {
            "description": " ".join(texts),
            "content": {
                "application/json": {"schema": _any_of({"$ref": f"#/components/schemas/{name}"} for name in names)}
            },
        }
        for status, (texts, names) in sorted(statuses.items())
    }


def _any_of(schemas: Iterable[Schema]) -> Schema:
    several = list(schemas)
    return {"anyOf": several} if len(several) > 1 else several[0]


def component_name(shape: ErrorShape) -> str:
    """The name of a component: of `openai_error` it is OpenaiError."""
    return "".join(word.capitalize() for word in shape.__name__.strip("_").split("_"))


def error_statuses(
    shapes: Sequence[ErrorShape], *, of: Sequence[type[RequestError]] = _ERRORS_OF_DIALECTS
) -> dict[str, tuple[list[str], list[str]]]:
    """The meaning of each status, and the names of the components that its body may be."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for kind in of:
        for shape in (*shapes, openai_error) if kind in _BEFORE_A_ROUTE else shapes:
            texts, names = found.setdefault(str(shape(kind("")).status), ([], []))
            for word, into in ((inspect.cleandoc(kind.__doc__ or ""), texts), (component_name(shape), names)):
                if word not in into:
                    into.append(word)
    return found


def schema_of_errors(shape: ErrorShape) -> dict[str, Any]:
    """The JSON schema of a shape's bodies."""
    errors = [kind("a message", param=param) for kind in ERRORS for param in (None, "a field")]
    return _schema([json.loads(bytes(shape(error).body)) for error in errors])


def _schema(values: Iterable[Any]) -> dict[str, Any]:
    """The schema of JSON values without lists. The fields that all objects have are required."""
    given = list(values)
    objects = [value for value in given if isinstance(value, dict)]
    if not objects:
        types = sorted({_JSON_TYPES[type(value)] for value in given})
        return {"type": types if len(types) > 1 else types[0]}
    assert len(objects) == len(given), "objects and other values are not mixed"
    names = list(dict.fromkeys(name for value in objects for name in value))
    return {
        "type": "object",
        "properties": {name: _schema(value[name] for value in objects if name in value) for name in names},
        "required": [name for name in names if all(name in value for value in objects)],
    }
