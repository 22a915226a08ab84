"""The OpenAPI page: the dialects' routes, which FastAPI does not know, and what all routes share: errors and keys.

The types of bodies do not say everything: `refine` adds the words that a field takes, and how many, how large and how
long values are. What still can't be said in a schema is which fields contradict each other, and what `on_error`
forgives. What errors look like is found out by writing each of them in each dialect's shape.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from server.dialects.error_shapes import openai_error
from server.dialects.reading.row_options import DTYPE_WORDS, ENDIANNESS_WORDS, FORMAT_WORDS, LISTED_WORDS
from server.dialects.reading.text_options import (
    DIRECTION_WORDS,
    END_WORDS,
    LONG_TEXT_WORDS,
    max_prompt_chars,
    purpose_words,
    side_words,
)
from server.dialects.route import ErrorShape, PlainRoute, Route
from server.dialects.table import PLAIN_ROUTES, ROUTES
from server.dialects.weaviate import pooling_words
from server.http.auth import METRICS_PATHS, is_health
from server.requests.errors import (
    ERRORS,
    BodyTooSlow,
    Conflict,
    Forbidden,
    HeadTooLarge,
    MalformedBody,
    ModelNotFound,
    NoSuchRoute,
    NotFound,
    NotReady,
    RequestError,
    Unauthorized,
    WrongMethod,
)
from server.requests.models import ModelsState, ServedModel

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
_TEXT_LISTS = ("input", "inputs", "texts", "documents", "sentences", "queries", "items", "text_1", "text_2")
_LISTS = (*_TEXT_LISTS, "data_1", "data_2", "ids", "tokens", "messages", "instances")  # of items, which are counted
_FILLED = (*_LISTS, "query", "text", "source_sentence", "property")  # must not be empty
_WORDS = {
    "encoding_format": FORMAT_WORDS,
    "embedding_type": FORMAT_WORDS,
    "embed_dtype": DTYPE_WORDS,
    "output_dtype": DTYPE_WORDS,
    "endianness": ENDIANNESS_WORDS,
    "truncate": END_WORDS,
    "truncation_direction": DIRECTION_WORDS,
    "truncation_side": DIRECTION_WORDS,
    "aggregation_strategy": ("none", "simple", "first", "average", "max"),
    "on_error": ("null", "fail"),
    "long_text": LONG_TEXT_WORDS,
}
_RERANK = "RerankBody"  # what the names of its forms begin with
_TEIS_QUERY = ("RerankBodyOfTexts", "query")  # may be empty if no text is
_TEXTS_IN_PROMPT = ("PromptBody", "prompt")  # vLLM's texts
_WITH_TEXT_IN_PROMPT = ("PromptBody", "OllamaPromptBody")  # elsewhere it goes before a text
_OLLAMAS_INPUT = ("OllamaEmbedBody", "input")  # empty, it loads a model
_SIDES_ONLY = ("InputsBody", "EmbedHybridBody")  # where input_type and task are a side of a search
_LEAST = {"dimensions": 0, "output_dimension": 1, "num_ctx": 1, "top_n": 0, "top_k": 0, "max_tokens": 1}
_LEAST |= {"max_tokens_per_doc": 0, "max_chunks_per_doc": 1, "truncate_prompt_tokens": 1}
_OWN_LEAST = {(name, "dimensions"): 1 for name in ("EmbedBody", "RootBody", "Config")}
_ERRORS_OF_DIALECTS = tuple(
    kind for kind in ERRORS if kind not in (NoSuchRoute, NotFound, Conflict)
)  # these are no dialect's
# Refused before the route is known, in OpenAI's shape on every path.
_BEFORE_A_ROUTE = frozenset((MalformedBody, BodyTooSlow, HeadTooLarge))
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def describe(
    app: FastAPI,
    state: ModelsState,
    *,
    routes: Callable[[], Sequence[BaseRoute]],
    needs_key: bool,
    metrics_auth: bool,
) -> Callable[[], Schema]:
    """The function that FastAPI calls for its schema, which is made once, when the first model is loaded. `routes`
    gives those that FastAPI can describe."""

    def openapi() -> Schema:
        is_complete = state.models is not None  # the limits of the model are there
        if app.openapi_schema is None or app.openapi_schema["x-is-complete"] != is_complete:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=routes())
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
                    is_open = is_health(method.upper(), path) or (path in METRICS_PATHS and not metrics_auth)
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
    of_routes = (shape for route in ROUTES for shape in route.all_error_shapes)
    shapes = dict.fromkeys((openai_error, *of_routes, *(route.error_shape for route in PLAIN_ROUTES)))
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


def errors_of(*kinds: type[RequestError]) -> Schema:
    """The errors that a route of a feature answers: these, and those of all such routes."""
    return _errors(error_statuses([openai_error], of=[*_OF_EVERY_ROUTE, NotReady, *kinds]))


def _any_of(schemas: Iterable[Schema]) -> Schema:
    several = list(schemas)
    return {"anyOf": several} if len(several) > 1 else several[0]


def _describe_own_routes(paths: Schema) -> None:
    """Adds what FastAPI can't know of its own routes."""
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


def refine(components: Schema, names: Iterable[str], *, max_items: int, model: ServedModel | None) -> None:
    """Adds to the schemas of bodies what the first model and the server's limits allow."""
    for name in names:
        properties = components[name].get("properties", {})
        for field in properties.keys() - components[name].get("required", ()):
            if "default" not in properties[field] and properties[field].get("type") != "boolean":
                properties[field] = {"anyOf": [properties[field], {"type": "null"}]}  # null is as good as nothing
        for field, schema in properties.items():
            for part in _parts(schema):
                _refine_part(name, field, part, max_items=max_items, model=model)


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schema, or its alternatives, without null."""
    for part in schema.get("anyOf", [schema]):
        if "anyOf" in part:
            yield from _parts(part)
        elif part.get("type") != "null":
            yield part


def _refine_part(name: str, field: str, part: Schema, *, max_items: int, model: ServedModel | None) -> None:
    kind = part.get("type")
    words = None if "enum" in part else _words_of(name, field, model)
    if kind == "string" and words is not None:
        part["enum"] = list(words)
    elif kind == "string" and field == "prompt" and name not in _WITH_TEXT_IN_PROMPT and model is not None:
        part["maxLength"] = max_prompt_chars(model)
    elif kind == "integer" and field in _LEAST:
        _limit(name, field, part, model)
    elif kind == "array" and field == "encoding_format":
        part["items"] = {"enum": sorted(LISTED_WORDS)}
        part["minItems"], part["maxItems"] = 1, len(FORMAT_WORDS)
    elif kind == "object" and "properties" in part:
        for inner, schema in part["properties"].items():
            for inner_part in _parts(schema):
                _refine_part(name, inner, inner_part, max_items=max_items, model=model)
    elif (field in _FILLED and (name, field) != _TEIS_QUERY) or (name, field) == _TEXTS_IN_PROMPT:
        is_list = field in _LISTS or (name, field) == _TEXTS_IN_PROMPT
        _fill(part, max_items=max_items if is_list else None, vocab_size=model.vocab_size if model else None)
        if field == "tokens" or name.startswith(_RERANK):
            for item in _parts(part.get("items", {})):
                _may_be_empty(item)
        if (name, field) == _OLLAMAS_INPUT:
            _may_be_empty(part)


def _words_of(name: str, field: str, model: ServedModel | None) -> Iterable[str] | None:
    if field == "encoding_format" and name.startswith(_RERANK):
        return ("float", "bytes")
    if model is not None:
        if field == "prompt_name":
            return sorted(model.prompts) or None
        if field in ("input_type", "task"):
            return side_words() if name in _SIDES_ONLY else purpose_words(model)
        if field == "pooling_strategy":
            return pooling_words(model)
    return _WORDS.get(field)


def _limit(name: str, field: str, part: Schema, model: ServedModel | None) -> None:
    if field == "truncate_prompt_tokens":
        del part["type"]
        number = {"type": "integer", "minimum": 1, **({"maximum": model.max_seqlen} if model else {})}
        part["anyOf"] = [{"const": -1}, number]
        return
    part["minimum"] = _OWN_LEAST.get((name, field), _LEAST[field])
    if model is not None and field in ("dimensions", "output_dimension"):
        part["maximum"] = model.dimensions
        if model.truncate_dim is not None:
            part["default"] = model.truncate_dim


def _fill(part: Schema, *, max_items: int | None, vocab_size: int | None) -> None:
    """Fills in bounds: no empty text or list, not too many items, and ids of the vocabulary."""
    match part.get("type"):
        case "string":
            part["minLength"] = 1
        case "integer":
            part["minimum"] = 0
            if vocab_size:
                part["maximum"] = vocab_size - 1
        case "array":
            part["minItems"] = 1
            items = part["items"]
            if max_items is not None and not _is_one_item(items):
                part.setdefault("maxItems", max_items)
            for inner in _parts(items) if "contains" not in part else ():  # that says which of them may be empty
                _fill(inner, max_items=None, vocab_size=vocab_size)
        case "object" if "text" in part.get("properties", ()):
            _fill(part["properties"]["text"], max_items=None, vocab_size=None)


def _is_one_item(items: Schema) -> bool:
    """Whether a list of these is one item: token ids, or messages."""
    return items.get("type") == "integer" or "role" in items.get("properties", ())


def _may_be_empty(part: Schema) -> None:
    part.pop("minLength", None)
    part.pop("minItems", None)


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
