"""The values of JSON that may be wrong, with their places, so that an error can name the one that is to blame.

A decoder refuses a whole body for half of a surrogate pair, other bytes than UTF-8 or NaN in one text or number of it.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

MAX_DEPTH = 64
_TOKEN = re.compile(rb'"[^"]*+"?|[\[\]{}:,]|[^\s\[\]{}:,"]++')
_NAME = re.compile(rb'"([A-Za-z_][A-Za-z0-9_]{0,63})"')
UNNAMED = "?"  # for names that are no usual ones: they are the client's
_TEXT = msgspec.json.Decoder(str)
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)


class Value(NamedTuple):
    """A text, number or word, or the beginning of a list or object."""

    path: tuple[str | int, ...]  # names of fields and indices
    start: int
    stop: int


def without_escapes(json: bytes) -> bytes:
    """The JSON at its length, with no quote inside of a text. A piece of JSON may be given that ends no escape in its
    middle."""
    return json.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in json else json


def value_at(json: bytes, path: tuple[str | int, ...], *, most: int) -> bytes | None:
    """The text or number at this place, as it stands, if it is among so many values and a decoder takes it."""
    for value in islice(values(without_escapes(json)), most):
        if value.path == path:
            return None if is_wrong(json, value) else json[value.start : value.stop]
    return None


def values(json: bytes) -> Iterator[Value]:
    """All values in their order, as far as lists and objects show their places; one that lies too deep is the last.

    `json` is without escapes.
    """
    path: list[str | int | None] = []  # None = a name comes next
    for token in _TOKEN.finditer(json):
        mark = token[0]
        if mark in (b"]", b"}", b","):
            if not path:
                return
            last = path.pop()
            if mark == b",":
                path.append(last + 1 if isinstance(last, int) else None)
        elif path and path[-1] is None:
            name = _NAME.fullmatch(mark)
            path[-1] = name[1].decode() if name else UNNAMED
        elif mark != b":":
            yield Value(tuple(step for step in path if step is not None), *token.span())
            if len(path) > MAX_DEPTH:
                return
            if mark in (b"[", b"{"):
                path.append(0 if mark == b"[" else None)


def is_wrong(json: bytes, value: Value) -> bool:
    """Whether no decoder takes it. Of a list or an object only whether it lies too deep."""
    if len(value.path) > MAX_DEPTH:
        return True
    raw = json[value.start : value.stop]
    if raw in (b"[", b"{"):
        return False
    try:
        (_TEXT if raw.startswith(b'"') else _ANYTHING).decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True
    return False


def marked(json: bytes, these: Sequence[Value], mark: bytes) -> bytes:
    """The JSON with the mark in the place of each of these values, which are in their order."""
    parts, at = list[bytes](), 0
    for value in these:
        parts.append(json[at : value.start])
        at = value.stop
    return mark.join([*parts, json[at:]])


def place_of(path: tuple[str | int, ...]) -> str:
    """The place as messages name it: `input[3].text`; up to a name that is no usual one."""
    named = takewhile(lambda step: step != UNNAMED, path)
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in named).removeprefix(".")
