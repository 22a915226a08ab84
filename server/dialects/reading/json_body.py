"""JSON bodies: msgspec's decoders, and its messages as our errors. Knows no field."""

import re
from typing import TypeVar

import msgspec

from server.requests.errors import InvalidRequest, MalformedBody

_PLACE = re.compile(r" - at `\$\.?(.*)`$")  # in msgspec's message about a wrong field
_MISSING = re.compile(r"missing required field `(\w+)`")  # in its message about a missing one
_Parsed = TypeVar("_Parsed")
_MAX_DEPTH = 64
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LISTS_ONLY = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_body(decoder: "msgspec.json.Decoder[_Parsed]", body: bytes) -> _Parsed:
    """A route's whole body. Fields that the route does not know are ignored, but they may not be nested too deeply.
    Fields that it knows are objects, or lists of texts or ids, which are never deep.

    Raises MalformedBody and InvalidRequest.
    """
    parsed = parse(decoder, body)
    if body.count(b"[") + body.count(b"{") > _MAX_DEPTH:
        for name, value in parse(_FIELDS, body).items():
            raw = bytes(value)
            may_be_deep = not hasattr(parsed, name) or raw.startswith(b"{")
            if may_be_deep and _depth(raw) >= _MAX_DEPTH:  # the body is a level itself
                raise MalformedBody(f"the body is nested deeper than {_MAX_DEPTH} levels")
    return parsed


def _depth(value: bytes) -> int:
    """Levels of lists and objects, counted by taking away the innermost; at most _MAX_DEPTH are looked for."""
    outside_strings = value.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    brackets = b"".join(outside_strings).translate(_LISTS_ONLY, _NO_BRACKETS)
    depth = 0
    while brackets and depth < _MAX_DEPTH:
        brackets = brackets.replace(b"[]", b"")
        depth += 1
    return depth


def parse(decoder: "msgspec.json.Decoder[_Parsed]", data: bytes | msgspec.Raw, field: str | None = None) -> _Parsed:
    """Raises MalformedBody for what is not JSON, and InvalidRequest, naming the field, for JSON of another form.

    msgspec's messages name types and places, never values.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        message = str(error)
    except RecursionError:
        raise MalformedBody(f"{field or 'the body'} is nested too deeply", param=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedBody(f"{field or 'the body'} is not valid JSON in UTF-8", param=field) from None
    place = _PLACE.search(message)
    param = _joined(field, place[1] if place else "")
    if missing := _MISSING.search(message):
        param = _joined(param, missing[1])
        raise InvalidRequest(f"{param} is missing", param=param)
    problem = message[: place.start()] if place else message
    raise InvalidRequest(f"{param or 'the body'}: {problem.lower()}", param=param)


def _joined(field: str | None, inner: str) -> str | None:
    """A field inside of another, or an index in it."""
    separator = "." if field and inner and not inner.startswith("[") else ""
    return f"{field or ''}{separator}{inner}" or None
