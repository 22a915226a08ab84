"""A body in JSON: it is decoded by msgspec, whose messages become our errors.

A route honours the fields of its body. Those of all other bodies, and of NOWHERE, `FieldsReader` refuses by their
names, unless the value changes nothing. Fields that are in no body and not in NOWHERE (user, metadata) are passed over,
unless they are almost a field of the route: a client's spelling mistake, which would change the result in silence.

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
from collections.abc import Callable, Collection, Iterable, Iterator
from decimal import Decimal
from functools import cached_property, lru_cache
from itertools import chain, islice, repeat, takewhile
from types import new_class
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType, inspect

from server.dialects.fields.field import SEND_TEXTS, Row, names_of, rows_of, structs_in
from server.requests.errors import IS_NO_TEXT, InvalidRequest, MalformedBody
from server.requests.limits import TimeSlice
from wire.json_values import MAX_DEPTH, Value, is_wrong, place_of, values, without_escapes

JSON = "JSON in UTF-8"
BOM = b"\xef\xbb\xbf"  # in UTF-8; RFC 8259 lets a reader pass over it
BLANK_BOM = b" " * len(BOM)  # in its place, so that places in the body stay what they are
_OTHER_BOMS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16, and of UTF-32 beside two zeros
_PLACE = re.compile(r" - at `\$\.?(.*)`$")  # in msgspec's message about a wrong field
_MISSING = re.compile(r"missing required field `(\w+)`")  # in its message about a missing one
_VALUE = re.compile(r"^(Invalid (?:enum )?value) .*", re.DOTALL)  # the only message that repeats a value
_UNKNOWN = re.compile(r"^Object contains unknown field `.*`$", re.DOTALL)  # and only this one a name of the client's
_BYTE = re.compile(r"\(byte \d+\)$")  # in its message about what is no JSON
_MAX_VALUES = 1 << 12  # of a body that is no JSON, among which `parse_body` looks for the wrong one
_MAX_PROBLEM = 200  # characters: the name of a field that is not known is the client's
_Parsed = TypeVar("_Parsed")
_Body = TypeVar("_Body", bound=msgspec.Struct)
_Decoded = TypeVar("_Decoded", covariant=True)
_OUR_NAMES = set[str]()  # of the fields of all bodies that have a decoder
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


def given_members(
    json: bytes | msgspec.Raw, names: tuple[str, ...], field: str | None = None
) -> dict[str, msgspec.Raw]:
    """Those of an object's members with these names that are given. Raises what `parse` raises."""
    found = msgspec.structs.astuple(parse(_raw_members(names), json, field))
    return {name: value for name, value in zip(names, found, strict=True) if value is not UNSET and is_given(value)}


@lru_cache(maxsize=512)  # names may be a client's
def _raw_members(names: tuple[str, ...], *, forbids_others: bool = False) -> msgspec.json.Decoder[msgspec.Struct]:
    fields = [(f"field_{index}", msgspec.Raw | UnsetType, UNSET) for index in range(len(names))]
    rename = {field[0]: name for field, name in zip(fields, names, strict=True)}
    return msgspec.json.Decoder(
        msgspec.defstruct("Members", fields, rename=rename, forbid_unknown_fields=forbids_others)
    )


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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if field is None and form == JSON:
            check_utf_8(bytes(data))
        position = _position(bytes(data), error) if form == JSON else ""
        raise MalformedBody(f"{field or 'the body'} is not valid {form}{position}", param=field) from None
    place = _PLACE.search(message)
    param = _joined(field, place[1] if place else "")
    if missing := _MISSING.search(message):
        param = _joined(param, missing[1])
        raise InvalidRequest(f"{param} is missing", param=param)
    problem = _VALUE.sub(r"\1", message[: place.start()] if place else message)
    if field is not None and _UNKNOWN.match(problem):
        raise InvalidRequest(f"{param or 'the body'} has a field that is not known here", param=param)
    raise InvalidRequest(f"{param or 'the body'}: {problem[:_MAX_PROBLEM].lower()}", param=param)


def _position(json: bytes, error: Exception) -> str:
    """The byte at which the parser stopped, as messages say it; "" where nothing knows."""
    if found := _BYTE.search(str(error)):
        return f" {found[0].replace('byte', 'at byte')}"
    try:
        json.decode()
    except UnicodeDecodeError as wrong:
        return f" (at byte {wrong.start})"
    # of half a surrogate pair msgspec says, as of JSON that ends too early, that it is truncated
    return "" if b"\\u" in json else f" (at byte {len(json)})"


def parse_body(decoder: Decoder[_Parsed], body: bytes) -> _Parsed:
    """A body that BodyDecoder does not see, with a byte order mark or not. Raises what `parse` raises; of JSON that is
    wrong with the place of the value that is to blame, if it is among the first."""
    if body.startswith(BOM):
        body = BLANK_BOM + body[len(BOM) :]
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
        path, problem = value.path[:2], f"is nested deeper than {MAX_DEPTH} levels"  # the item
    else:
        is_text = body.startswith(b'"', value.start)
        path, problem = value.path, IS_NO_TEXT if is_text else "is not valid JSON"
    own = tuple(takewhile(lambda step: isinstance(step, int) or step in _OUR_NAMES, path))
    place = place_of(path)
    return MalformedBody(f"{place} {problem}", param=place, own_param=place_of(own))


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
        _OUR_NAMES.update(field.encode_name for field in getattr(self._kind, "fields", ()))

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
    members = msgspec.structs.astuple(_raw_members(tuple(kinds), forbids_others=forbids).decode(value))
    for (name, each), member in zip(kinds.items(), members, strict=True):
        if member is not UNSET:
            yield name, member, each


_SEND_CHUNKS = "send the chunks of each document"
# The fields that no route has.
NOWHERE: dict[str, Row] = {
    "outputDimensionality": Row(
        by="Vertex AI", says="only the first numbers of each row", neutral=(), hint="its name here is dimensions"
    ),
    "enable_auto_chunking": Row(by="Voyage", says="the server cuts documents", neutral=(False,), hint=_SEND_CHUNKS),
    "chunk_size": Row(by="Voyage", says="the tokens of a chunk", neutral=(), hint=_SEND_CHUNKS),
    "chunk_overlap": Row(by="Voyage", says="the tokens that chunks have in common", neutral=(0,)),
    "return_multivector": Row(by="Jina", says="rows of tokens", neutral=(False,)),
    "chat_template": Row(by="vLLM", says="another template for chats", neutral=()),
    "padding": Row(by="vLLM", says="how batches are filled up", neutral=(True, False, "do_not_pad", "longest")),
    "truncation_strategy": Row(by="Hugging Face", says="which text of a pair is cut", neutral=()),
    "autoTruncate": Row(by="Vertex AI", says="long texts are cut", neutral=(), hint="its name here is truncate"),
    "candidate_labels": Row(by="Hugging Face", says="labels to choose among", neutral=([],)),
    "labels": Row(by="Jina", says="labels to choose among", neutral=([],)),
    "classifier_id": Row(by="Jina", says="a classifier that was trained before", neutral=()),
    "relevant_spans": Row(by="Mixedbread", says="places in the documents", neutral=(False,)),
    "rewrite_query": Row(by="Mixedbread", says="another query in the place of this one", neutral=(False,)),
    "modality": Row(by="Infinity", says="what the inputs are", neutral=("text",)),
    "images": Row(by="Cohere", says="images in the place of texts", neutral=([],), hint=SEND_TEXTS),
    "image": Row(by="Jina", says="an image in the place of a text", neutral=(), hint=SEND_TEXTS),
}
KNOWN_FIELDS = dict(NOWHERE)  # every reader adds the fields of its body


class FieldsReader(Generic[_Body]):
    """Reads the JSON bodies of one route, or objects in them."""

    def __init__(self, body: type[_Body], *, not_with_chats: Collection[str] = ()) -> None:
        """`not_with_chats`: fields that the route has for other bodies than this one, which is of chats."""
        self._not_with_chats = not_with_chats
        for name, row in (item for struct in structs_in(body) for item in rows_of(struct).items()):
            if name not in KNOWN_FIELDS or KNOWN_FIELDS[name].neutral is None:
                KNOWN_FIELDS[name] = row
        self._body = body
        # Most bodies have only fields that the route declares. They are decoded once and need no other look.
        strict = new_class(body.__name__, (body,), {"forbid_unknown_fields": True})
        self._strict = msgspec.json.Decoder(cast(type[_Body], strict))
        self._lenient = LosslessDecoder[_Body](body)

    @cached_property
    def _foreign(self) -> "_Foreign":
        """What the route refuses: made when a body first needs it, when all other routes are known."""
        return _Foreign(self._body, self._not_with_chats)

    def read(self, body: bytes | msgspec.Raw, field: str | None = None) -> _Body:
        """The fields of a body. `field` is the name of the object, None for the whole body. Raises MalformedBody and
        InvalidRequest.

        A large body has been through `check_large` before.
        """
        try:
            fields = self._strict.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            missing = self._foreign.refuse(body, field)
            self._foreign.refuse_misspelt(body, field, missing)
            fields = parse(self._lenient, body, field)
        if field is None and len(whole := bytes(body)) <= LARGE_BYTES:
            check_nesting(whole)
        return fields


_IS_PLAIN = inspect.type_info(bool | int)


class _Foreign:
    """What a route refuses: fields of other routes that change a result, and names that are almost its own."""

    def __init__(self, body: type[msgspec.Struct], not_with_chats: Collection[str]) -> None:
        self._not_with_chats = not_with_chats
        rows, required = rows_of(body), {field.encode_name for field in msgspec.structs.fields(body) if field.required}
        self._spelled = tuple(
            name for name, row in rows.items() if row.neutral is not None or row.items is not None or row.changes_result
        )
        self._needed = tuple(name for name, row in rows.items() if row.items is not None and name in required)
        foreign = KNOWN_FIELDS.keys() - names_of(body)
        self._neutral = {  # in JSON
            name: frozenset(map(msgspec.json.encode, row.neutral))
            for name, row in sorted(KNOWN_FIELDS.items())  # of several the first of these is named
            if name in foreign and row.neutral is not None
        }
        self._names = tuple(self._neutral)
        self._longest = 1 + max(len(value) for neutral in self._neutral.values() for value in neutral)

    def refuse(self, body: bytes | msgspec.Raw, field: str | None) -> tuple[str, ...]:
        """The inputs that are missing. Raises InvalidRequest for a known field that the route does not honour, and what
        `parse` raises."""
        members = given_members(body, self._names + self._needed, field)
        missing = tuple(name for name in self._needed if members.pop(name, None) is None)
        for name, given in members.items():
            value, neutral = bytes(memoryview(given)[: self._longest]), self._neutral[name]
            if value in neutral or (len(value) < self._longest and plain(value, _IS_PLAIN) in neutral):
                continue
            row, param = KNOWN_FIELDS[name], f"{field}.{name}" if field else name
            allowed = " or ".join(msgspec.json.encode(value).decode() for value in row.neutral or ())
            where = "with chats" if name in self._not_with_chats else "on this route"
            problem = f"must be {allowed} {where}, or be left out" if allowed else f"is not supported {where}"
            raise InvalidRequest(f"{param} {problem}{f'; {row.hint}' if row.hint else ''}", param=param)
        return missing

    def refuse_misspelt(self, body: bytes | msgspec.Raw, field: str | None, missing: tuple[str, ...]) -> None:
        """Raises InvalidRequest for a name that is almost a field of the route. Where the inputs are missing, names of
        other routes' are looked at too. The body is a JSON object."""
        name = _misspelt(body, self._spelled, KNOWN_FIELDS) or _misspelt(body, missing, ())
        if name is not None:
            param = f"{field}.{name}" if field else name
            raise InvalidRequest(f"a field of the body is not known here; did you mean {param}?", param=param)


# Bodies are looked at for misspelt names only if they have a field that the route does not declare, and at their
# beginning and their end, where clients have their options: texts stand between, and may be 64 MB.
_NAME = re.compile(rb'"([A-Za-z_][A-Za-z0-9_-]{1,31})"\s*:')
_BYTES_LOOKED_AT = 32 * 1024  # at each end
_MAX_NAMES = 64
_MAX_ALMOST = 4  # of them: a type is made for each choice
_LEAST_LETTERS = 4  # shorter names are almost too many others
#: that clients of these or of other APIs send, and that look like a field of a route
HARMLESS = frozenset(("id", "mask", "stop", "stream", "tags", "test", "tools", "top_p", "context", "output_type"))


def _misspelt(body: bytes | msgspec.Raw, own: tuple[str, ...], known: Collection[str]) -> str | None:
    """The field of `own` that a name in this JSON object is almost, None if there is none. Names that are `known`, and
    those whose value is null, are left alone."""
    names = (name for name in _names(bytes(body)) if name not in known and name not in HARMLESS)
    almost = dict(islice(((name, field) for name in names if (field := _field_like(name, own))), _MAX_ALMOST))
    given = given_members(body, tuple(almost)) if almost else {}
    return next((almost[name] for name in given), None)


def _names(body: bytes) -> Iterator[str]:
    """The first names of fields, each once, of the object or of objects in it."""
    ends = (body[:_BYTES_LOOKED_AT], body[max(_BYTES_LOOKED_AT, len(body) - _BYTES_LOOKED_AT) :])
    found = dict.fromkeys(name for end in ends for name in _NAME.findall(end))
    return (name.decode() for name in list(found)[:_MAX_NAMES])


@lru_cache(maxsize=1024)  # a client sends the same names with every body
def _field_like(name: str, own: tuple[str, ...]) -> str | None:
    """The field that the name is but for its case, underscores and hyphens, else one that it almost is."""
    word, words = _letters(name), _words_of(own)
    return words.get(word) or next((field for other, field in words.items() if _is_almost(word, other)), None)


@lru_cache(maxsize=64)  # as many as there are routes
def _words_of(own: tuple[str, ...]) -> dict[str, str]:
    return {_letters(field): field for field in own}


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _is_almost(first: str, second: str) -> bool:
    """Whether the two differ in one letter that is wrong, missing or too many, or in the order of two."""
    if not -1 <= len(first) - len(second) <= 1 or len(second) < _LEAST_LETTERS:
        return False
    same = next((at for at, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), None)
    rest, other = (first[same:], second[same:]) if same is not None else ("", "")
    is_swapped = rest[:2] == other[1::-1] and rest[2:] == other[2:]
    return same is None or is_swapped or other[1:] in (rest, rest[1:]) or rest[1:] == other


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
