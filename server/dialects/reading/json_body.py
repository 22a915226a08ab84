"""A body in JSON, whatever its fields: it is decoded by msgspec, whose messages become our errors.

`LosslessDecoder` also takes spellings of a value from which nothing is lost: `"true"` and `"false"` for booleans, `2.0`
and `1e2` for integers. Some clients have no others: PHP, R and Gson write whole numbers as floats, and fields of forms
are texts. No other text stands for a boolean, and none for a number. JSON is read in its own spelling first, so usual
bodies cost nothing more.

`check_nesting` and `check_large` find JSON that is nested too deeply or made of too many lists and objects before a
parser spends its time on it. A parser holds the event loop until it is done, and 12 MB may be four million lists. So
large bodies are looked through in slices first, in between which other requests run. Numpy adds the brackets up: Python
would take seconds for them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import cache
from itertools import chain, islice, repeat
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType, inspect

from server.requests.errors import IS_NO_TEXT, InvalidRequest, MalformedBody
from server.requests.time_slices import TimeSlice
from wire.json_values import MAX_DEPTH, Value, is_wrong, place_of, values, without_escapes

JSON = "JSON in UTF-8"
BOM = b"\xef\xbb\xbf"  # in UTF-8; RFC 8259 lets a reader pass over it
_OTHER_BOMS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16, and of UTF-32 beside two zeros
_PLACE = re.compile(r" - at `\$\.?(.*)`$")  # in msgspec's message about a wrong field
_MISSING = re.compile(r"missing required field `(\w+)`")  # in its message about a missing one
_VALUE = re.compile(r"^(Invalid (?:enum )?value) .*", re.DOTALL)  # the only message that repeats a value
_MAX_VALUES = 1 << 12  # of a body that is no JSON, among which `parse_body` looks for the wrong one
_MAX_PROBLEM = 200  # characters: the name of a field that is not known is the client's
_Parsed = TypeVar("_Parsed")
_Decoded = TypeVar("_Decoded", covariant=True)
WORDS = {"true": True, "false": False}
_WORDS = {b'"%b"' % word.encode(): word.encode() for word in WORDS}
MAX_WHOLE = 2.0**53  # from there on floats may have lost a digit
_MAX_SPELLED = 1 << 12  # of one body's lists; each takes Python microseconds, and a body may have millions
_MAX_INNER = 1 << 14  # texts and lists in them that are told from their values: an object has several
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_LAX_NUMBERS = msgspec.json.Decoder(list[int], strict=False)  # takes texts too, and rounds
_MAY_ROUND = re.compile(rb"\.\d*[1-9]|[eE]-")
# Texts, and lists without any: their commas are not between the values of what they stand in.
_INNER = re.compile(rb'"(?:[^"\\]++|\\.)*+"|\[[^\[\]{}"]*+\]', re.DOTALL)
_Fields = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
MAX_LISTS = 262_144  # lists and objects of a body: a parser takes some 10 ms for them
LARGE_BYTES = 64 * 1024  # what has more is looked through in slices; also the size of a piece
_QUOTE = 2
_MARKS = bytes.maketrans(b'[{]}"', bytes((1, 1, 255, 255, _QUOTE)))  # 255 is -1: a level less
_OTHERS = bytes(set(range(256)) - set(b'[{]}"'))
_MARKS_A_STEP = 1 << 14  # so that int16 has room for the levels, and numpy's arrays stay in the cache


class Decoder(Protocol[_Decoded]):
    """A decoder of msgspec, for JSON or msgpack."""

    def decode(self, data: bytes | msgspec.Raw, /) -> _Decoded: ...


#: of a field of a body that is read later, where the body has none
NOT_GIVEN: Any = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


def is_given(value: msgspec.Raw) -> bool:
    """Whether a body has a field, and not as null, which means the same as none."""
    return bytes(memoryview(value)[:5]) != b"null"


def check_utf_8(json: bytes) -> None:
    """Raises MalformedBody for JSON in UTF-16 or UTF-32: of each quote or bracket a byte is 0."""
    if json.startswith(_OTHER_BOMS) or b"\0" in json[:4]:
        raise MalformedBody("the body is not valid JSON in UTF-8; it looks like UTF-16 or UTF-32")


def parse(
    decoder: Decoder[_Parsed], data: bytes | msgspec.Raw, field: str | None = None, *, form: str = JSON
) -> _Parsed:
    """The value of JSON. Raises MalformedBody for what is not of this form, and InvalidRequest, naming the field, for
    other fields.

    Messages name types and places, never values.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        message = str(error)
    except RecursionError:
        raise MalformedBody(f"{field or 'the body'} is nested too deeply", param=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        if field is None and form == JSON:
            check_utf_8(bytes(data))
        raise MalformedBody(f"{field or 'the body'} is not valid {form}", param=field) from None
    place = _PLACE.search(message)
    param = _joined(field, place[1] if place else "")
    if missing := _MISSING.search(message):
        param = _joined(param, missing[1])
        raise InvalidRequest(f"{param} is missing", param=param)
    problem = _VALUE.sub(r"\1", message[: place.start()] if place else message)
    raise InvalidRequest(f"{param or 'the body'}: {problem[:_MAX_PROBLEM].lower()}", param=param)


def parse_body(decoder: Decoder[_Parsed], body: bytes) -> _Parsed:
    """A body that BodyDecoder does not see, with a byte order mark or not. Raises what `parse` raises; of JSON that is
    wrong with the place of the value that is to blame, if it is among the first."""
    body = body.removeprefix(BOM)
    try:
        return parse(decoder, body)
    except MalformedBody:
        found = islice(values(without_escapes(body)), _MAX_VALUES)
        wrong = next((value for value in found if place_of(value.path[:1]) and is_wrong(body, value)), None)
        if wrong is None:
            raise
    raise wrong_value(body, wrong)


def wrong_value(body: bytes, value: Value) -> MalformedBody:
    """The error that no decoder takes this value of a body."""
    if len(value.path) > MAX_DEPTH:
        place = place_of(value.path[:2])  # the item
        return MalformedBody(f"{place} is nested deeper than {MAX_DEPTH} levels", param=place)
    place = place_of(value.path)
    is_text = body.startswith(b'"', value.start)
    return MalformedBody(f"{place} {IS_NO_TEXT if is_text else 'is not valid JSON'}", param=place)


def _joined(field: str | None, inner: str) -> str | None:
    """A field inside of another, or an index in it."""
    separator = "." if field and inner and not inner.startswith("[") else ""
    return f"{field or ''}{separator}{inner}" or None


class LosslessDecoder(Generic[_Parsed]):
    """msgspec's decoder of JSON for one type, which takes the other spellings too."""

    def __init__(self, kind: Any, *, dec_hook: Callable[[Any, Any], Any] | None = None) -> None:
        """`dec_hook` is as for msgspec's decoder."""
        self._decoder: msgspec.json.Decoder[_Parsed] = msgspec.json.Decoder(kind, dec_hook=dec_hook)
        self._kind = inspect.type_info(kind)

    def decode(self, data: bytes | msgspec.Raw, /) -> _Parsed:
        """Raises what msgspec's decoder raises."""
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError:
            return self._decoder.decode(plain(bytes(data), self._kind))


def plain(value: bytes, kind: inspect.Type) -> bytes:
    """The JSON in its own spelling where this kind is wanted. What is not of the kind stays as it is."""
    return _Speller().plain(value, kind)


class _Speller:
    """Spells the values of one body. What stands behind _MAX_SPELLED of its lists stays, and the decoder refuses it."""

    def __init__(self) -> None:
        self._num_left = _MAX_SPELLED

    def plain(self, value: bytes, kind: inspect.Type) -> bytes:
        """Does what the function of this name does."""
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
    """Whether a text is allowed: then it stands as it is."""
    return any(isinstance(part, inspect.StrType) for part in kind.types)


def _plain_number(value: bytes) -> bytes:
    try:
        number = float(value)
        is_same = number.is_integer() and abs(number) < MAX_WHOLE and Decimal(value.decode()) == number
    except ArithmeticError:  # an exponent of twenty digits
        return value
    return b"%d" % number if is_same else value


def _plain_numbers(value: bytes) -> bytes | None:
    """Spells a list of numbers alone without a look at each; None if one may be no whole number."""
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
    members = msgspec.structs.astuple(_raw_members(tuple(kinds), forbids).decode(value))
    for (name, each), member in zip(kinds.items(), members, strict=True):
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


def check_nesting(body: bytes) -> None:
    """Raises MalformedBody for JSON that is nested too deeply. For bodies that are not large."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _Nesting().add(body)


async def check_large(body: bytes) -> None:
    """Checks a large body, which may not be JSON; it must not have more than MAX_LISTS lists and objects either.

    Lets other requests run meanwhile.
    """
    time_slice, num_opened = TimeSlice(), 0
    for start in range(0, len(body), LARGE_BYTES):
        letters = np.frombuffer(body, np.uint8, min(LARGE_BYTES, len(body) - start), start)
        num_opened += int(np.count_nonzero(letters | 0x20 == ord("{")))  # the bit that tells { from [
        await time_slice.end_if_over()
    if num_opened <= MAX_DEPTH:
        return
    nesting = _Nesting()
    for piece in pieces(body):
        nesting.add(piece)
        await time_slice.end_if_over()


class _Nesting:
    """Adds up the lists and objects of one body."""

    def __init__(self) -> None:
        self._level = 0
        self._is_in_text = np.uint8(0)
        self._num_lists = 0

    def add(self, json: bytes) -> None:
        """The next piece, which ends no escape in its middle. Raises MalformedBody."""
        if b"\\" in json:
            json = json.replace(rb"\\", b"").replace(rb"\"", b"")
        marks = np.frombuffer(json.translate(_MARKS, _OTHERS), np.int8)
        for start in range(0, len(marks), _MARKS_A_STEP):
            self._add_marks(marks[start : start + _MARKS_A_STEP])

    def _add_marks(self, marks: "np.ndarray[tuple[int], np.dtype[np.int8]]") -> None:
        is_quote = marks == _QUOTE
        is_text = (np.cumsum(is_quote, dtype=np.uint8) & 1) ^ self._is_in_text  # wrapping keeps odd numbers odd
        changes = marks * (1 - (is_text | is_quote))
        levels = np.cumsum(changes, dtype=np.int16)
        if self._level + int(levels.max()) > MAX_DEPTH:
            raise MalformedBody(f"the body is nested deeper than {MAX_DEPTH} levels")
        self._num_lists += int(np.count_nonzero(changes == 1))
        if self._num_lists > MAX_LISTS:
            raise MalformedBody(f"the body has more than {MAX_LISTS} lists and objects")
        self._level, self._is_in_text = self._level + int(levels[-1]), is_text[-1]


def pieces(body: bytes) -> Iterator[bytes]:
    """Yields at most LARGE_BYTES at a time. A backslash is in the same piece as what it escapes."""
    start = 0
    while start < len(body):
        piece = body[start : start + LARGE_BYTES]
        num_last = len(piece) - len(piece.rstrip(b"\\"))
        if num_last % 2 and len(piece) > 1:
            piece = piece[:-1]
        yield piece
        start += len(piece)
