"""The hot routes in the OpenAPI page, although FastAPI never sees a request for them."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from server.http.post_routes import ROUTES
from server.http.route import Route
from server.requests.errors import HeadTooLarge, NoSuchRoute, RequestError, WrongMethod

_HEADERS = {
    "request-timeout-ms": ("integer", "Milliseconds after which the answer is of no use: 504, and the work is dropped"),
    "x-embedline-class": ("string", "interactive or bulk; by default by the request's size"),
}
_BEFORE_A_ROUTE = (HeadTooLarge, NoSuchRoute, WrongMethod)


def with_hot_routes(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """What FastAPI calls for its schema, made once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            components = _add_hot_routes(schema)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _add_hot_routes(schema: dict[str, Any]) -> dict[str, Any]:
    bodies, components = msgspec.json.schema_components(
        [route.body for route in ROUTES], ref_template="#/components/schemas/{name}"
    )
    for route, body in zip(ROUTES, bodies, strict=True):
        schema["paths"].setdefault(route.path, {})["post"] = _operation(route, body)
    return components


def _operation(route: Route, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": route.summary,
        "operationId": "post_" + route.path.strip("/").replace("/", "_"),
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": kind}}
            for name, (kind, text) in _HEADERS.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {
                "description": "The answer, in the order of the inputs",
                "content": {name: {"schema": answer} for name, answer in route.responses.items()},
            },
            **{status: {"description": text} for status, text in _errors(route).items()},
        },
    }


def _errors(route: Route) -> dict[str, str]:
    """For each status of the route's family what it stands for."""
    found: dict[str, list[str]] = {}
    for kind in RequestError.__subclasses__():
        if kind in _BEFORE_A_ROUTE:
            continue
        found.setdefault(str(route.error_shape(kind("")).status), []).append(inspect.cleandoc(kind.__doc__ or ""))
    return {status: " ".join(texts) for status, texts in sorted(found.items())}
