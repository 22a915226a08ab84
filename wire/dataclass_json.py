"""Frozen dataclasses as JSON and back, by their type hints. An engine's Python may have nothing but numpy for this.

Fields may be str, int, float, bool, bytes (as hexadecimal digits), enums, lists, tuples, other dataclasses, None where
the hint allows it, and dicts, which are JSON that whoever reads the field understands.
"""

import dataclasses
import enum
import types
import typing
from typing import Any, TypeVar

from wire.frames import ProtocolError

_T = TypeVar("_T")


def to_json(value: Any) -> Any:
    """The value made of dicts, lists and scalars."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def from_json(kind: type[_T], fields: Any) -> _T:
    """The inverse of `to_json`. Raises ProtocolError where a field is unknown, missing or of the wrong type."""
    hints = typing.get_type_hints(kind)
    if not isinstance(fields, dict) or fields.keys() - hints.keys():
        # values may be secret
        given = ", ".join(map(str, fields)) if isinstance(fields, dict) else type(fields).__name__
        raise ProtocolError(f"a {kind.__name__} has the fields {', '.join(hints)}, not {given}")
    try:
        return kind(**{name: _as(hints[name], value) for name, value in fields.items()})
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"not a {kind.__name__}: {error}") from None


def _as(hint: Any, value: Any) -> Any:
    """`value` as the type that `hint` names. Raises ProtocolError, TypeError and ValueError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _as(arguments[0], value)
    if origin is list:
        return [_as(arguments[0], one) for one in value]
    if origin is tuple:
        inner = arguments[:1] * len(value) if Ellipsis in arguments else arguments
        return tuple(_as(each, one) for each, one in zip(inner, value, strict=True))
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value)
    hint = origin or hint
    if issubclass(hint, enum.Enum):
        return hint(value)
    if hint is bytes:
        return bytes.fromhex(value)
    if type(value) not in ((int, float) if hint is float else (hint,)):
        raise TypeError(f"{value!r} is not of type {hint.__name__}")
    return value
