"""JSON bodies: msgspec's decoders, and its messages as our errors. Knows no field."""

import re
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from server.requests.errors import IS_NO_TEXT, InvalidRequest, MalformedBody
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


class Decoder(Protocol[_Decoded]):
    """msgspec's, of JSON or msgpack."""

    def decode(self, data: bytes | msgspec.Raw, /) -> _Decoded: ...


def check_utf_8(json: bytes) -> None:
    """Raises MalformedBody for JSON in UTF-16 or UTF-32: of each quote or bracket a byte is 0."""
    if json.startswith(_OTHER_BOMS) or b"\0" in json[:4]:
        raise MalformedBody("the body is not valid JSON in UTF-8; it looks like UTF-16 or UTF-32")


def parse(
    decoder: Decoder[_Parsed], data: bytes | msgspec.Raw, field: str | None = None, *, form: str = JSON
) -> _Parsed:
    """Raises MalformedBody for what is not of this form, and InvalidRequest, naming the field, for other fields.

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
    """That no decoder takes this value of a body."""
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
