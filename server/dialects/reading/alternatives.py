"""Bodies that need one of several fields: the OpenAPI page has a form of the body for each. No decoder reads these."""

import functools
import operator
from collections.abc import Collection
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo

Forms = tuple[type[msgspec.Struct], ...]


def forms_of(body: type[msgspec.Struct], *choices: Collection[str]) -> Forms:
    """For each choice of fields the body that must have them, and that lacks the fields of the others."""
    chosen = {name for names in choices for name in names}
    return tuple(_form(body, names, without=chosen.difference(names)) for names in choices)


def _form(body: type[msgspec.Struct], required: Collection[str], *, without: Collection[str]) -> type[msgspec.Struct]:
    own = [field for field in msgspec.structs.fields(body) if field.name not in without]
    words = "".join(field.encode_name.title().replace("_", "") for field in own if field.name in required)
    fields = [_required(field) if field.name in required else _optional(field) for field in own]
    return msgspec.defstruct(
        f"{body.__name__}Of{words}",
        fields,
        kw_only=True,
        module=body.__module__,
        namespace={"__doc__": body.__doc__},
    )


def _required(field: FieldInfo) -> tuple[str, Any, Any]:
    return field.name, _without_null(field.type), msgspec.field(name=field.encode_name)


def _optional(field: FieldInfo) -> tuple[str, Any, Any]:
    if field.default_factory is not NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory, name=field.encode_name)
    return field.name, field.type, msgspec.field(default=field.default, name=field.encode_name)


def _without_null(kind: Any) -> Any:
    if get_origin(kind) not in (UnionType, Union):
        return kind
    return functools.reduce(operator.or_, (part for part in get_args(kind) if part is not NoneType))
