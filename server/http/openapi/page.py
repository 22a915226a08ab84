"""The OpenAPI page: the dialects' routes, which FastAPI does not know, and what all routes share: errors and keys."""

import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from server.dialects.route import PlainRoute, Route
from server.dialects.table import PLAIN_ROUTES, ROUTES
from server.dialects.writing.error_shapes import openai_error
from server.http.auth import METRICS_PATHS, is_health
from server.http.openapi.body_schemas import refine
from server.http.openapi.error_schemas import component_name, error_statuses, schema_of_errors
from server.requests.errors import Forbidden, ModelNotFound, NotReady, RequestError, Unauthorized, WrongMethod
from server.requests.models import ServerState

Schema = dict[str, Any]

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
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_LINES = "a line for each line of a body that comes as application/x-ndjson: a text, or a body with one input"
_NO_MODEL = "The server has no such model"


def describe(app: FastAPI, state: ServerState, *, needs_key: bool, metrics_need_a_key: bool) -> Callable[[], Schema]:
    """The function that FastAPI calls for its schema, which is made once, when the first model is loaded."""

    def openapi() -> Schema:
        is_complete = state.models is not None  # the limits of the model are there
        if app.openapi_schema is None or app.openapi_schema["x-is-complete"] != is_complete:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            components = _add_dialects(schema)
            schema["x-is-complete"] = is_complete
            refine(
                components,
                msgspec.json.schema_components([body for route in ROUTES for body in route.bodies])[1],
                max_items=state.newest.get("limits", {}).get("max_client_batch_size", 1),
                model=state.models.models[0] if state.models else None,
            )
            for path, methods in schema["paths"].items():
                for method, operation in methods.items():
                    is_open = is_health(method.upper(), path) or (path in METRICS_PATHS and not metrics_need_a_key)
                    if needs_key and not is_open:
                        operation["security"] = [{name: []} for name in _SECURITY]
            _describe_own_routes(schema["paths"])
            schema["components"] = {"schemas": components, "securitySchemes": _SECURITY}
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _add_dialects(schema: Schema) -> Schema:
    """Adds the operations; returns the schemas that they refer to."""
    types = [kind for route in ROUTES for kind in (*route.bodies, *route.answers)]
    listed = [route for route in PLAIN_ROUTES if route.is_listed]
    types += [route.content for route in listed if route.content is not None]
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = iter(found)
    for route in ROUTES:
        bodies = [next(schemas) for _ in route.bodies]
        answers = [next(schemas) for _ in route.answers]
        schema["paths"].setdefault(route.path, {})["post"] = _operation(route, _any_of(bodies), answers)
    for plain in listed:
        content = next(schemas) if plain.content is not None else None
        schema["paths"].setdefault(plain.path, {})[plain.method.lower()] = _plain_operation(plain, content)
    shapes = {openai_error, *(shape for route in ROUTES for shape in route.all_error_shapes)}
    shapes |= {route.error_shape for route in PLAIN_ROUTES}
    components = json.loads(json.dumps(components))  # dialects share parts, which differ from field to field later
    return {**components, **{component_name(shape): schema_of_errors(shape) for shape in shapes}}


def _operation(route: Route, body: Schema, answers: list[Schema]) -> Schema:
    content = {"application/json": {"schema": _any_of(answers)}}
    if route.raw_answer:
        raw = {"type": "string", "format": "binary", "description": route.raw_answer}
        content |= {kind: {"schema": raw} for kind in ("application/octet-stream", "application/x-npy")}
    if route.takes_lines:
        content["application/x-ndjson"] = {"schema": {"type": "string", "description": _LINES}}
    return {
        "summary": route.summary,
        "operationId": _operation_id("post", route.path),
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": kind}
            for name, (kind, text) in _HEADERS.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body, "example": route.example}}},
        "responses": {
            "200": {"description": "The answer, in the order of the inputs", "content": content},
            **_errors(error_statuses(route.all_error_shapes)),
        },
    }


def _plain_operation(route: PlainRoute, content: Schema | None) -> Schema:
    responses: Schema = {str(status): {"description": "The answer"} for status in route.statuses}
    if content is not None:
        responses["200"]["content"] = {"application/json": {"schema": content}}
    if "503" in responses:
        responses["503"] |= {"description": inspect.cleandoc(NotReady.__doc__ or ""), "content": _TEXT}
    refused = error_statuses([route.error_shape], of=_OF_EVERY_ROUTE)
    return {
        "summary": route.summary,
        "operationId": _operation_id(route.method, route.path),
        "responses": {**responses, **_errors(refused)},
    }


def _operation_id(method: str, path: str) -> str:
    return "_".join([method.lower(), *path.strip("/").replace(".", "").split("/")])


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


def _describe_own_routes(paths: Schema) -> None:
    """What FastAPI can't know of its own routes."""
    of_dialects = {route.path for route in PLAIN_ROUTES if route.method == "GET"}
    for path, methods in paths.items():
        operation = methods.get("get")
        if operation is None or path in of_dialects:
            continue
        responses = operation["responses"]
        responses.pop("422", None)  # no value of a query can be wrong
        is_text = "text/plain" in responses["200"].get("content", {})
        if not is_text:
            responses["200"]["content"] = _OBJECT
        if any(parameter["name"] == "model" for parameter in operation.get("parameters", ())):
            responses["404"] = {"description": _NO_MODEL, "content": _TEXT if is_text else _OBJECT}
            responses["503"] = {"description": "Not ready", "content": _TEXT if is_text else _OBJECT}
        if "{" in path:
            responses.update(_errors(error_statuses([openai_error], of=[ModelNotFound])))
        if path == "/metrics":
            responses["503"] = {"description": "The supervisor does not answer", "content": _TEXT}
        responses.update(_errors(error_statuses([openai_error], of=_OF_EVERY_ROUTE)))
