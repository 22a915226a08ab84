"""The hot routes in the OpenAPI page, although FastAPI never sees a request for them."""

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from server.openai import EMBEDDINGS_PATHS, EmbeddingsBody

_HEADERS = {
    "request-timeout-ms": ("integer", "Milliseconds after which the answer is of no use: 504, and the work is dropped"),
    "x-embedline-class": ("string", "interactive or bulk; by default by the request's size"),
}
_ERRORS = {
    "400": "The request is at fault; `param` names the field or index",
    "404": "No model of that name is served",
    "408": "The body stopped coming",
    "413": "The body is over --payload-limit",
    "415": "The body is compressed",
    "429": "Too much work waits; try again after `retry-after` seconds",
    "503": "No engine is ready",
    "504": "The deadline passed",
}


def with_hot_routes(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """What FastAPI calls for its schema, made once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            components = _add_embeddings(schema)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _add_embeddings(schema: dict[str, Any]) -> dict[str, Any]:
    (body,), components = msgspec.json.schema_components([EmbeddingsBody], ref_template="#/components/schemas/{name}")
    for path in EMBEDDINGS_PATHS:
        schema["paths"][path] = {"post": _embeddings(body, operation_id=path.strip("/").replace("/", "_"))}
    return components


def _embeddings(body: dict[str, Any], *, operation_id: str) -> dict[str, Any]:
    return {
        "summary": "Embeddings, as OpenAI has them",
        "operationId": operation_id,
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": kind}}
            for name, (kind, text) in _HEADERS.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {
                "description": "One row for each input, in order",
                "content": {
                    "application/json": {"schema": _answer_schema()},
                    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                },
            },
            **{status: {"description": text} for status, text in _ERRORS.items()},
        },
    }


def _answer_schema() -> dict[str, Any]:
    numbers = {"oneOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "format": "byte"}]}
    item = {
        "object": {"const": "embedding"},
        "index": {"type": "integer"},
        "embedding": numbers,
    }
    usage = {"prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}}
    return {
        "type": "object",
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"type": "object", "properties": item}},
            "model": {"type": "string"},
            "usage": {"type": "object", "properties": usage},
        },
    }
