"""JSON bodies: msgspec's decoders, and its messages as our errors. Knows no field."""

import re
from typing import TypeVar

import msgspec
import numpy as np

from server.requests.errors import InvalidRequest, MalformedBody

_PLACE = re.compile(r" - at `\$\.?(.*)`$")  # in msgspec's message about a wrong field
_MISSING = re.compile(r"missing required field `(\w+)`")  # in its message about a missing one
_Parsed = TypeVar("_Parsed")
_MAX_DEPTH = 64
_QUOTE = 2
_MARKS = bytes.maketrans(b'[{]}"', bytes((1, 1, 255, 255, _QUOTE)))  # 255 is -1: a level less
_OTHERS = bytes(set(range(256)) - set(b'[{]}"'))
_MARKS_A_STEP = 1 << 14  # so that int16 has room for the levels, and numpy's arrays stay in the cache


def check_depth(body: bytes) -> None:
    """Raises MalformedBody for valid JSON that is nested too deeply."""
    if body.count(b"[") + body.count(b"{") > _MAX_DEPTH and _is_deep(body):
        raise MalformedBody(f"the body is nested deeper than {_MAX_DEPTH} levels")


def _is_deep(json: bytes) -> bool:
    """Whether there are more than _MAX_DEPTH levels of lists and objects. Numpy adds them up: JSON may be all brackets,
    and Python would take seconds for them. The JSON must be valid.
    """
    if b"\\" in json:
        json = json.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = np.frombuffer(json.translate(_MARKS, _OTHERS), np.int8)
    level, is_in_text = 0, np.uint8(0)
    for start in range(0, len(marks), _MARKS_A_STEP):
        part = marks[start : start + _MARKS_A_STEP]
        is_quote = part == _QUOTE
        is_text = (np.cumsum(is_quote, dtype=np.uint8) & 1) ^ is_in_text  # wrapping keeps odd numbers odd
        levels = np.cumsum(part * (1 - (is_text | is_quote)), dtype=np.int16)
        if level + int(levels.max()) > _MAX_DEPTH:
            return True
        level, is_in_text = level + int(levels[-1]), is_text[-1]
    return False


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
