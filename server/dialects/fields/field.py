"""One row for each field of a body, as its annotation: what it does, whose name it is, and which values it takes.

Fields of one subject stand together in a group, a struct beside the function that reads them. A body inherits the
groups that it takes, so a field's name is the name of one attribute. The bounds are not msgspec's, because the words
of errors are API: readers check them, and `refine` adds them to the OpenAPI page. What can't be said in a schema is
which fields contradict each other, and what `on_error` forgives.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

import msgspec

from server.requests.models import ServedModel

SEND_TEXTS = "send texts instead"  # a hint
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is known of one field. `neutral` are the values that change nothing on a route without the field, as null
    never does; None = the field itself changes nothing there, and is passed over."""

    says: str  # what it does, for the pages
    by: str = ""  # whose name for it this is; "" = OpenAI's, or everyone's
    neutral: tuple[Any, ...] | None = None
    changes_result: bool = False  # of its own route, though others pass it over
    hint: str = ""  # ends the error where it is refused
    # For the OpenAPI page. Functions get the first model.
    words: tuple[str, ...] | Callable[[ServedModel], Iterable[str] | None] = ()
    listed: frozenset[str] = frozenset()  # the words that a list may have
    least: int | None = None
    besides: int | None = None  # a number that is allowed besides those from `least` on
    of_model: Callable[[ServedModel], Schema] | None = None  # more bounds
    items: "Items | None" = None  # if what the route is asked about stands in the field
    inner: type[msgspec.Struct] | None = None  # of an object that is read later


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What a route is asked about: texts, token ids, or what else it takes."""

    is_list: bool  # whose items are counted
    may_be_empty: bool = False
    may_have_empty: bool = False
    may_be_empty_beside: str = ""  # only in the form of the body that needs this field


def option(says: str, *, neutral: tuple[Any, ...] = (), **more: Any) -> msgspec.Meta:
    """The row of a field that changes a result: routes without it refuse it by its name."""
    return passed_over(says, neutral=neutral, **more)


def passed_over(says: str, *, schema: Schema | None = None, **more: Any) -> msgspec.Meta:
    """The row of a field that changes nothing on routes without it. `schema` is that of a field that is read later."""
    return msgspec.Meta(extra_json_schema=schema, extra={"row": Row(says=says, **more)})


def item_field(
    says: str,
    schema: Schema | None = None,
    *,
    is_list: bool = True,
    by: str = "",
    neutral: tuple[Any, ...] | None = None,
    hint: str = "",
    **more: bool | str,
) -> msgspec.Meta:
    """The row of a field that holds what the route is asked about."""
    items = Items(is_list=is_list, **cast(Any, more))
    return passed_over(says, schema=schema, by=by, neutral=neutral, hint=hint, items=items)


class _Merging(msgspec.StructMeta):
    """Lets a struct have several bases, which msgspec's own can't: the first is a base, and the fields of the others
    are added to it."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        if len(bases) > 1:
            own = names_of(bases[0])
            every = {field.name: field for base in reversed(bases[1:]) for field in msgspec.structs.fields(base)}
            added = [field for field in every.values() if field.encode_name not in own]
            merged: dict[str, Any] = {field.name: with_default(field) for field in added}
            merged["__annotations__"] = {field.name: field.type for field in added}
            bases = (super().__new__(mcs, name, bases[:1], merged, kw_only=True),)
        return super().__new__(mcs, name, bases, namespace, **options)


def with_default(field: Any) -> Any:
    """The default of a struct's field, also one that is made, for a field of another struct."""
    make: Any = msgspec.field  # its types do not know that either may be NODEFAULT
    return make(default=field.default, default_factory=field.default_factory, name=field.encode_name)


class Fields(msgspec.Struct, metaclass=_Merging, kw_only=True):
    """A group of fields, or a body of several groups."""


@cache
def forms_of(body: type[msgspec.Struct], choices: tuple[tuple[str, ...], ...]) -> tuple[type[msgspec.Struct], ...]:
    """For each choice of fields a form of the body that must have them, and that lacks the fields of the others."""
    chosen = {name for names in choices for name in names}
    return tuple(_form(body, names, without=chosen.difference(names)) for names in choices)


def _form(body: type[msgspec.Struct], required: Collection[str], *, without: Collection[str]) -> type[msgspec.Struct]:
    own = [field for field in msgspec.structs.fields(body) if field.name not in without]
    words = "".join(field.encode_name.title().replace("_", "") for field in own if field.name in required)
    fields = [
        (field.name, _without_null(field.type), msgspec.field(name=field.encode_name))
        if field.name in required
        else (field.name, field.type, with_default(field))
        for field in own
    ]
    more: Any = {"kw_only": True, "module": body.__module__, "namespace": {"__doc__": body.__doc__}}
    return msgspec.defstruct(f"{body.__name__}Of{words}", fields, **more)


def _without_null(kind: Any) -> Any:
    if get_origin(kind) not in (UnionType, Union):
        return kind
    return Union[tuple(part for part in get_args(kind) if part is not NoneType)]  # noqa: UP007  # there may be one


def names_of(*groups: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of their fields, as bodies have them."""
    return tuple(field.encode_name for group in groups for field in msgspec.structs.fields(group))


def row_of(kind: Any) -> Row | None:
    """The row in a field's type, None if that has none."""
    if get_origin(kind) is Annotated:
        found = (part.extra["row"] for part in kind.__metadata__ if isinstance(part, msgspec.Meta) and part.extra)
        return next(found, None)
    return next((row for part in get_args(kind) if (row := row_of(part)) is not None), None)


def rows_of(body: type[msgspec.Struct]) -> dict[str, Row]:
    """The rows of a body by the names of its fields."""
    rows = ((field.encode_name, row_of(field.type)) for field in msgspec.structs.fields(body))
    return {name: row for name, row in rows if row is not None}


def structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs in a type: a body itself, and those of the objects in it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from structs_in(field.type)
    for part in get_args(kind):
        yield from structs_in(part)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits that the server and its first model have."""

    max_items: int
    model: ServedModel | None


def refine(components: Schema, bodies: Iterable[type[msgspec.Struct]], bounds: Bounds) -> None:
    """Adds to the schemas of bodies what the rows of their fields say."""
    for body in dict.fromkeys(struct for one in bodies for struct in structs_in(one)):
        schema = components[body.__name__]
        properties, required = schema.get("properties", {}), schema.get("required", ())
        for name in properties.keys() - required:
            if "default" not in properties[name] and properties[name].get("type") != "boolean":
                properties[name] = {"anyOf": [properties[name], {"type": "null"}]}  # null is as good as nothing
        _refine_properties(properties, body, required, bounds)


def _refine_properties(
    properties: Schema, body: type[msgspec.Struct], required: Collection[str], bounds: Bounds
) -> None:
    for name, row in rows_of(body).items():
        for part in _parts(properties[name]):
            if row.inner is not None:
                _refine_properties(part["properties"], row.inner, (), bounds)
            elif row.items is None:
                _limit(part, row, bounds.model)
            elif row.items.may_be_empty_beside not in required:
                _bound_items(part, row.items, bounds)


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schema, or its alternatives, without null."""
    for part in schema.get("anyOf", [schema]):
        if "anyOf" in part:
            yield from _parts(part)
        elif part.get("type") != "null":
            yield part


def _limit(part: Schema, row: Row, model: ServedModel | None) -> None:
    """Adds the words and the bounds of an option."""
    of_model = row.of_model(model) if model is not None and row.of_model is not None else {}
    match part.get("type"):
        case "string" if "enum" not in part:
            words = row.words if isinstance(row.words, tuple) else row.words(model) if model else None
            part |= {"enum": list(words), **of_model} if words else of_model
        case "array" if row.listed and isinstance(row.words, tuple):
            part |= {"items": {"enum": sorted(row.listed)}, "minItems": 1, "maxItems": len(row.words)}
        case "integer" if row.least is not None and row.besides is None:
            part |= {"minimum": row.least, **of_model}
        case "integer" if row.least is not None:
            others = {"type": part.pop("type"), "minimum": row.least, **of_model}
            part["anyOf"] = [{"const": row.besides}, others]


def _bound_items(part: Schema, items: Items, bounds: Bounds) -> None:
    vocab_size = bounds.model.vocab_size if bounds.model else None
    _fill(part, max_items=bounds.max_items if items.is_list else None, vocab_size=vocab_size)
    inner = _parts(part.get("items", {})) if items.may_have_empty else ()
    for empty in (*inner, *([part] if items.may_be_empty else ())):
        empty.pop("minLength", None)
        empty.pop("minItems", None)


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
            # a list of token ids, or of messages, is one item
            if max_items is not None and items.get("type") != "integer" and "role" not in items.get("properties", ()):
                part.setdefault("maxItems", max_items)
            for inner in _parts(items) if "contains" not in part else ():  # that says which of them may be empty
                _fill(inner, max_items=None, vocab_size=vocab_size)
        case "object" if "text" in part.get("properties", ()):
            _fill(part["properties"]["text"], max_items=None, vocab_size=None)
