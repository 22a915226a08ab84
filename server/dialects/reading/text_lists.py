"""Texts in lists of lists, as TEI's `inputs` of /predict and Baseten's of /predict_tokens give them.

Items are counted before the value is decoded, as in inputs.py. Decoding checks that an inner list has at least one
text, so there are never many more lists than quotes.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from server.dialects.reading.inputs import check_num_items
from server.dialects.reading.json_body import parse
from server.requests.errors import EmptyInput, InvalidRequest

_FIRST_ITEM = re.compile(rb"\[\s*(.)")
_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_ONES = msgspec.json.Decoder(list[Annotated[list[str], msgspec.Meta(min_length=1, max_length=1)]])
_ONES_OR_PAIRS = msgspec.json.Decoder(list[Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)]])


class TextLists(msgspec.Struct, frozen=True):
    """Texts, or pairs of them."""

    texts: Sequence[str]
    pair_texts: Sequence[str] = ()  # as many second texts; () = no pairs
    alone: frozenset[int] = frozenset()  # indices of the texts without a partner, if others have one
    is_single: bool = False  # one text or one pair, not a list of them


def read_texts_or_pairs(value: msgspec.Raw, field: str, *, max_items: int) -> TextLists:
    """A text, a pair of texts, or a list of lists of one or of two.

    Raises InvalidRequest, EmptyInput and MalformedBody.
    """
    raw = bytes(value)
    wrong = InvalidRequest(
        f"{field} must be a text, a pair of texts, or a list of lists of one text or two each", param=field
    )
    match _kind(raw, field):
        case b"text":
            lists, is_single = [[parse(_TEXT, raw, field)]], True
        case b"texts":
            if _num_texts(raw) > 2:
                raise wrong
            lists, is_single = [parse(_TEXTS, raw, field)], True
            if len(lists[0]) > 2:
                raise wrong
        case b"lists":
            check_num_items(-(-_num_texts(raw) // 2), field, max_items=max_items)
            lists, is_single = parse(_ONES_OR_PAIRS, raw, field), False
        case _:
            raise wrong
    check_num_items(len(lists), field, max_items=max_items)
    return _texts_or_pairs(lists, field, is_single=is_single)


def read_single_texts(value: msgspec.Raw, field: str, *, max_items: int) -> TextLists:
    """A text, a list of texts, or a list of lists of one text each. Raises what read_texts_or_pairs raises."""
    raw = bytes(value)
    match _kind(raw, field):
        case b"text":
            lists, is_single = [[parse(_TEXT, raw, field)]], True
        case b"texts":
            check_num_items(_num_texts(raw), field, max_items=max_items)
            lists, is_single = [[text] for text in parse(_TEXTS, raw, field)], False
        case b"lists":
            check_num_items(_num_texts(raw), field, max_items=max_items)
            lists, is_single = parse(_ONES, raw, field), False
        case _:
            raise InvalidRequest(
                f"{field} must be a text, a list of texts, or a list of lists of one text each", param=field
            )
    check_num_items(len(lists), field, max_items=max_items)
    return _texts_or_pairs(lists, field, is_single=is_single)


def _kind(raw: bytes, field: str) -> bytes:
    """What the first characters show: text, texts, lists, or "" for anything else. Raises EmptyInput."""
    if raw.startswith(b'"'):
        return b"text"
    first = _FIRST_ITEM.match(raw)
    if first is not None and first[1] == b"]":
        raise EmptyInput(f"{field} must not be empty", param=field)
    return {b'"': b"texts", b"[": b"lists"}.get(first[1], b"") if first else b""


def _num_texts(raw: bytes) -> int:
    """A lower bound, at least half of the true number: a text that ends with a backslash looks as if it had one quote
    less."""
    return (raw.count(b'"') - raw.count(b'\\"')) // 2


def _texts_or_pairs(lists: list[list[str]], field: str, *, is_single: bool) -> TextLists:
    """One side of a pair may be empty, as TEI has it."""
    for index, texts in enumerate(lists):
        if not any(texts):
            name = field if is_single else f"{field}[{index}]"
            raise EmptyInput(f"{name} must not be empty", param=name)
    alone = frozenset(index for index, texts in enumerate(lists) if len(texts) == 1)
    first_texts = [texts[0] for texts in lists]
    if len(alone) == len(lists):
        return TextLists(first_texts, is_single=is_single)
    pair_texts = ["" if index in alone else texts[1] for index, texts in enumerate(lists)]
    return TextLists(first_texts, pair_texts, alone, is_single)
