"""The part of JSON Schema that the OpenAPI page uses, to ask whether it allows a value."""

import json
import operator
from collections.abc import Callable
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_WITHOUT_RULES = {"type", "title", "description", "default", "format", "additionalProperties"}
_LIMITS: dict[str, tuple[tuple[type, ...], Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "minimum": ((int, float), lambda value: value, operator.ge),
    "maximum": ((int, float), lambda value: value, operator.le),
    "minLength": ((str,), len, operator.ge),
    "maxLength": ((str,), len, operator.le),
    "minItems": ((list,), len, operator.ge),
    "maxItems": ((list,), len, operator.le),
    "maxProperties": ((dict,), len, operator.le),
}


def allows(page: Any, schema: Any, value: Any) -> bool:
    """Whether the value fits the schema; `page` is what references lead into."""
    if schema.get("additionalProperties") is False and isinstance(value, dict) and value.keys() - schema["properties"]:
        return False
    return _is_of_type(schema.get("type"), value) and all(
        _keeps(page, rule, schema[rule], value) for rule in schema.keys() - _WITHOUT_RULES
    )


def _is_of_type(kind: str | None, value: Any) -> bool:
    if kind is None:
        return True
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _keeps(page: Any, rule: str, asked: Any, value: Any) -> bool:
    if rule in _LIMITS:
        kinds, size, holds = _LIMITS[rule]
        return not isinstance(value, kinds) or holds(size(value), asked)
    match rule:
        case "$ref":
            return allows(page, _resolved(page, asked), value)
        case "anyOf":
            return any(allows(page, part, value) for part in asked)
        case "enum":
            return value in asked
        case "const":
            return json.dumps(value) == json.dumps(asked)
        case "required":
            return not isinstance(value, dict) or value.keys() >= set(asked)
        case "properties":
            return not isinstance(value, dict) or all(
                allows(page, part, value[name]) for name, part in asked.items() if name in value
            )
        case "items":
            return not isinstance(value, list) or all(allows(page, asked, item) for item in value)
        case "contains":
            return not isinstance(value, list) or any(allows(page, asked, item) for item in value)
    raise AssertionError(f"{rule} is not known here")


def _resolved(page: Any, reference: str) -> Any:
    found = page
    for key in reference.removeprefix("#/").split("/"):
        found = found[key]
    return found
