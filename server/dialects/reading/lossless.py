"""Spellings of a value from which nothing is lost: `"true"` and `"false"` for booleans, `2.0` and `1e2` for integers.

Some clients have no others: PHP, R and Gson write whole numbers as floats, and fields of forms are texts. No other text
stands for a boolean, and none for a number. JSON is read in its own spelling first, so usual bodies cost nothing more.
"""

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cache
from itertools import chain, repeat
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType, inspect

WORDS = {"true": True, "false": False}
_WORDS = {b'"%b"' % word.encode(): word.encode() for word in WORDS}
MAX_WHOLE = 2.0**53  # from there on floats may have lost a digit
_MAX_VALUES = 1 << 12  # of one body's lists; each takes Python microseconds, and a body may have millions
_MAX_INNER = 1 << 14  # texts and lists in them that are told from their values: an object has several
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_LAX_NUMBERS = msgspec.json.Decoder(list[int], strict=False)  # takes texts too, and rounds
_MAY_ROUND = re.compile(rb"\.\d*[1-9]|[eE]-")
# Texts, and lists without any: their commas are not between the values of what they stand in.
_INNER = re.compile(rb'"(?:[^"\\]++|\\.)*+"|\[[^\[\]{}"]*+\]', re.DOTALL)
_Fields = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
_Parsed = TypeVar("_Parsed")


class LosslessDecoder(Generic[_Parsed]):
    """msgspec's decoder of JSON for one type, which takes the other spellings too."""

    def __init__(self, kind: Any, *, dec_hook: Callable[[Any, Any], Any] | None = None) -> None:
        """`dec_hook` as msgspec has it."""
        self._decoder: msgspec.json.Decoder[_Parsed] = msgspec.json.Decoder(kind, dec_hook=dec_hook)
        self._kind = inspect.type_info(kind)

    def decode(self, data: bytes | msgspec.Raw, /) -> _Parsed:
        """Raises what msgspec's decoder raises."""
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError:
            return self._decoder.decode(plain(bytes(data), self._kind))


def plain(value: bytes, kind: inspect.Type) -> bytes:
    """The same JSON in its own spelling where this kind is wanted. What is not of the kind stays as it is."""
    return _Speller().plain(value, kind)


class _Speller:
    """Of one body. What stands behind _MAX_VALUES of its lists stays as it is, and is refused by the decoder."""

    def __init__(self) -> None:
        self._num_left = _MAX_VALUES

    def plain(self, value: bytes, kind: inspect.Type) -> bytes:
        """As the function of this name."""
        match kind:
            case inspect.Metadata():
                return self.plain(value, kind.type)
            case inspect.UnionType() if not (value.startswith(b'"') and _has_texts(kind)):
                spelled = (self.plain(value, part) for part in kind.types)
                return next((other for other in spelled if other != value), value)
            case inspect.BoolType():
                return _WORDS.get(value, value)
            case inspect.IntType() | inspect.EnumType() | inspect.LiteralType() if value[:1] in b"-0123456789":
                return _plain_number(value)
            case inspect.DictType() if value.startswith(b"{") and self._may_look_at(value):
                members = _MEMBERS.decode(value).items()
                return self._object((name, member, kind.value_type) for name, member in members)
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() if value.startswith(b"{"):
                return self._object(_members(value, kind))
            case _ if value.startswith(b"["):
                return self._list(value, kind)
        return value

    def _object(self, members: Iterable[tuple[str, msgspec.Raw, inspect.Type]]) -> bytes:
        spelled = (
            b"%b:%b" % (msgspec.json.encode(name), self.plain(bytes(member), kind)) for name, member, kind in members
        )
        return b"{%b}" % b",".join(spelled)

    def _list(self, value: bytes, kind: inspect.Type) -> bytes:
        match kind:
            case inspect.CollectionType():
                if isinstance(kind.item_type, inspect.IntType) and (numbers := _plain_numbers(value)) is not None:
                    return numbers
                kinds: Iterable[inspect.Type] = repeat(kind.item_type)
            case inspect.TupleType():
                kinds = kind.item_types
            case inspect.NamedTupleType() | inspect.StructType():
                kinds = [field.type for field in kind.fields]
            case _:
                return value
        if not self._may_look_at(value):
            return value
        items = zip(_ITEMS.decode(value), chain(kinds, repeat(inspect.AnyType())))  # noqa: B905  # the second has no end
        return b"[%b]" % b",".join(self.plain(bytes(item), each) for item, each in items)

    def _may_look_at(self, value: bytes) -> bool:
        """Whether the values of a list or an object, which count from now on, are not too many."""
        num_values = value.count(b",") + 1
        if num_values > self._num_left:
            num_values = _INNER.sub(b"", value[1:-1], _MAX_INNER).count(b",") + 1
        self._num_left -= num_values
        return self._num_left >= 0


def _has_texts(kind: inspect.UnionType) -> bool:
    """Then a text is what it says."""
    return any(isinstance(part, inspect.StrType) for part in kind.types)


def _plain_number(value: bytes) -> bytes:
    try:
        number = float(value)
        is_same = number.is_integer() and abs(number) < MAX_WHOLE and Decimal(value.decode()) == number
    except ArithmeticError:  # an exponent of twenty digits
        return value
    return b"%d" % number if is_same else value


def _plain_numbers(value: bytes) -> bytes | None:
    """The same for a list of nothing else, without a look at each; None if one may be no whole number."""
    if b'"' in value or _MAY_ROUND.search(value):
        return None
    try:
        numbers = _LAX_NUMBERS.decode(value)
    except msgspec.ValidationError:
        return None
    return None if MAX_WHOLE in numbers or -MAX_WHOLE in numbers else msgspec.json.encode(numbers)


def _members(value: bytes, kind: _Fields) -> Iterable[tuple[str, msgspec.Raw, inspect.Type]]:
    """Name, value and kind of those that an object of this kind may have; others are passed over or refused."""
    kinds = {field.encode_name: field.type for field in kind.fields}
    tag, forbids = getattr(kind, "tag_field", None), getattr(kind, "forbid_unknown_fields", False)
    if tag is not None:
        kinds[tag] = inspect.AnyType()
    values = msgspec.structs.astuple(_raw_members(tuple(kinds), forbids).decode(value))
    for (name, each), member in zip(kinds.items(), values, strict=True):
        if member is not UNSET:
            yield name, member, each


@cache
def _raw_members(
    names: tuple[str, ...], forbids_others: bool
) -> msgspec.json.Decoder[msgspec.Struct]:  # as many as there are types
    fields = [(f"field_{index}", msgspec.Raw | UnsetType, UNSET) for index in range(len(names))]
    rename = {field[0]: name for field, name in zip(fields, names, strict=True)}
    return msgspec.json.Decoder(
        msgspec.defstruct("Members", fields, rename=rename, forbid_unknown_fields=forbids_others)
    )
