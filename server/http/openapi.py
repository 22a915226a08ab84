"""The POST routes in the OpenAPI page, although FastAPI never sees a request for them."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from server.dialects.route import Route
from server.dialects.table import ROUTES
from server.requests.errors import ERRORS, HeadTooLarge, NoSuchRoute, WrongMethod

_HEADERS = {
    "request-timeout-ms": ("integer", "After so many milliseconds the work is dropped and the answer is 504"),
    "x-embedline-class": ("string", "interactive or bulk; the default depends on the request's size"),
}
_BEFORE_A_ROUTE = (HeadTooLarge, NoSuchRoute, WrongMethod)


def with_post_routes(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The function that FastAPI calls for its schema, which is made once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            components = _add_post_routes(schema)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _add_post_routes(schema: dict[str, Any]) -> dict[str, Any]:
    types = [kind for route in ROUTES for kind in (route.body, *route.answers)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    remaining = iter(schemas)
    for route in ROUTES:
        body, answers = next(remaining), [next(remaining) for _ in route.answers]
        schema["paths"].setdefault(route.path, {})["post"] = _operation(route, body, answers)
    return components


def _operation(route: Route, body: dict[str, Any], answers: list[dict[str, Any]]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"anyOf": answers} if len(answers) > 1 else answers[0]}}
    if route.raw_answer:
        raw = {"type": "string", "format": "binary", "description": route.raw_answer}
        content["application/octet-stream"] = {"schema": raw}
    return {
        "summary": route.summary,
        "operationId": "post_" + route.path.strip("/").replace("/", "_"),
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": kind}}
            for name, (kind, text) in _HEADERS.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body, "example": route.example}}},
        "responses": {
            "200": {"description": "The answer, in the order of the inputs", "content": content},
            **{status: {"description": text} for status, text in _errors(route).items()},
        },
    }


def _errors(route: Route) -> dict[str, str]:
    """What each status of the route's dialect means."""
    found: dict[str, list[str]] = {}
    for kind in ERRORS:
        if kind not in _BEFORE_A_ROUTE:
            found.setdefault(str(route.error_shape(kind("")).status), []).append(inspect.cleandoc(kind.__doc__ or ""))
    return {status: " ".join(texts) for status, texts in sorted(found.items())}
