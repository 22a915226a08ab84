"""What errors look like, for the OpenAPI page: found out by writing each of them in each dialect's shape."""

import inspect
import json
from collections.abc import Iterable, Sequence
from typing import Any

from server.dialects.route import ErrorShape
from server.dialects.writing.error_shapes import openai_error
from server.requests.errors import (
    ERRORS,
    BodyTooSlow,
    Conflict,
    HeadTooLarge,
    MalformedBody,
    NoSuchRoute,
    NotFound,
    RequestError,
)

_ALL = tuple(kind for kind in ERRORS if kind not in (NoSuchRoute, NotFound, Conflict))  # these are no dialect's
# Refused before the route is known, in OpenAI's shape on every path.
_BEFORE_A_ROUTE = frozenset((MalformedBody, BodyTooSlow, HeadTooLarge))
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def component_name(shape: ErrorShape) -> str:
    """`openai_error` is OpenaiError."""
    return "".join(word.capitalize() for word in shape.__name__.strip("_").split("_"))


def error_statuses(
    shapes: Sequence[ErrorShape], *, of: Sequence[type[RequestError]] = _ALL
) -> dict[str, tuple[list[str], list[str]]]:
    """By status what it means, and the names of the components that its body may be."""
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
    """Of JSON values without lists. The fields that all objects have are required."""
    given = list(values)
    objects = [value for value in given if isinstance(value, dict)]
    if not objects:
        types = sorted({_TYPES[type(value)] for value in given})
        return {"type": types if len(types) > 1 else types[0]}
    assert len(objects) == len(given), "objects and other values are not mixed"
    names = list(dict.fromkeys(name for value in objects for name in value))
    return {
        "type": "object",
        "properties": {name: _schema(value[name] for value in objects if name in value) for name in names},
        "required": [name for name in names if all(name in value for value in objects)],
    }
