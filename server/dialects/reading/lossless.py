"""Spellings of a value from which nothing is lost: `"true"` and `"false"` for booleans, `2.0` and `1e2` for integers.

Some clients have no others: PHP, R and Gson write whole numbers as floats, and fields of forms are texts. No other text
stands for a boolean, and none for a number. JSON is read in its own spelling first, so usual bodies cost nothing more.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

WORDS = {"true": True, "false": False}
_WORDS = {b'"%b"' % word.encode(): word.encode() for word in WORDS}
_MAX_WHOLE = 2.0**53  # from there on floats may have lost a digit
_MAX_NUMBERS = 1 << 12  # of a wrong list, of which the first wrong one is named
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_LAX_NUMBERS = msgspec.json.Decoder(list[int], strict=False)  # takes texts too
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
    match kind:
        case inspect.UnionType():
            spelled = (plain(value, part) for part in kind.types)
            return next((other for other in spelled if other != value), value)
        case inspect.BoolType():
            return _WORDS.get(value, value)
        case inspect.IntType() if value[:1] in b"-0123456789":
            return b"%d" % number if is_whole(number := float(value)) else value
        case inspect.ListType() if value.startswith(b"["):
            return _plain_list(value, kind.item_type)
        case inspect.StructType() if value.startswith(b"{"):
            return _plain_fields(value, kind)
    return value


def is_whole(number: float) -> bool:
    """Whether it is an integer, and the same as it was written."""
    return number.is_integer() and abs(number) < _MAX_WHOLE


def _plain_list(value: bytes, kind: inspect.Type) -> bytes:
    if isinstance(kind, inspect.IntType):  # there may be millions
        try:
            if b'"' not in value:
                return msgspec.json.encode(_LAX_NUMBERS.decode(value))
        except msgspec.ValidationError:
            pass
        if value.count(b",") >= _MAX_NUMBERS:
            return value
    return b"[%b]" % b",".join(plain(bytes(item), kind) for item in _ITEMS.decode(value))


def _plain_fields(value: bytes, kind: inspect.StructType) -> bytes:
    kinds = {field.encode_name: field.type for field in kind.fields}
    members = []
    for name, member in _MEMBERS.decode(value).items():
        raw = bytes(member)
        members.append(b"%b:%b" % (msgspec.json.encode(name), plain(raw, kinds[name]) if name in kinds else raw))
    return b"{%b}" % b",".join(members)
