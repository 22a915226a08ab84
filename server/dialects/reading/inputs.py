"""Texts or token ids to be embedded, as OpenAI's `input` and TEI's `inputs` give them.

Items are counted before the value is decoded: 64 MB of JSON can be 20 million lists, which take seconds and a gigabyte.
"""

import re
from collections.abc import Sequence

import msgspec

from server.dialects.reading.json_body import parse
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.models import ServedModel

SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}
_MAX_IDS = 1 << 22  # of one request: 2,048 lists of 2,048. OpenAI takes 300,000 tokens
_FIRST_ITEM = re.compile(rb"\[\s*(.)")
_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[int])
_ID_LISTS = msgspec.json.Decoder(list[list[int]])


class Inputs(msgspec.Struct, frozen=True):
    """Texts, or lists of token ids."""

    texts: Sequence[str] | None = None
    token_ids: Sequence[Sequence[int]] | None = None
    is_single: bool = False


def read_inputs(value: msgspec.Raw, field: str, *, max_items: int) -> Inputs:
    """The first characters show what it is. Raises InvalidRequest, EmptyInput and MalformedBody."""
    raw = bytes(value)
    if raw.startswith(b'"'):
        return Inputs(texts=_check_texts([parse(_TEXT, raw, field)], field), is_single=True)
    first = _FIRST_ITEM.match(raw)
    if first is None:
        raise InvalidRequest(f"{field} must be a text, or a list of texts, token ids or lists of ids", param=field)
    match first[1]:
        case b"]":
            raise EmptyInput(f"{field} must not be empty", param=field)
        case b'"':
            # Each text has two quotes. After a final backslash the closing quote looks escaped and isn't counted.
            check_num_items((raw.count(b'"') - raw.count(b'\\"')) // 2, field, max_items=max_items)
            texts = parse(_TEXTS, raw, field)
            check_num_items(len(texts), field, max_items=max_items)
            return Inputs(texts=_check_texts(texts, field + "[{}]"))
        case b"[":
            check_num_items(raw.count(b"[") - 1, field, max_items=max_items)
            _check_num_ids(raw, field)
            return Inputs(token_ids=parse(_ID_LISTS, raw, field))
        case _:
            _check_num_ids(raw, field)
            ids = parse(_IDS, raw, field)
            return Inputs(token_ids=[ids], is_single=True)


def read_texts(value: msgspec.Raw, field: str, *, max_items: int) -> Inputs:
    """As read_inputs, but refuses token ids."""
    given = read_inputs(value, field, max_items=max_items)
    if given.texts is None:
        raise InvalidRequest(f"{field} must be a text or a list of texts", param=field)
    return given


def read_ids(value: msgspec.Raw, field: str, *, max_items: int) -> Inputs:
    """The same, without texts."""
    given = read_inputs(value, field, max_items=max_items)
    if given.token_ids is None:
        raise InvalidRequest(f"{field} must be a list of token ids, or a list of such lists", param=field)
    return given


def check_num_items(num_items: int, field: str, *, max_items: int) -> None:
    """Raises InvalidRequest."""
    if num_items > max_items:
        raise InvalidRequest(
            f"{field} has more items than the maximum allowed batch size of {max_items} (--max-client-batch-size)",
            param=field,
            reason="batch_size",
        )


def _check_num_ids(raw: bytes, field: str) -> None:
    if raw.count(b",") >= _MAX_IDS:
        raise InvalidRequest(f"{field} has more than {_MAX_IDS} token ids", param=field)


def _check_texts(texts: list[str], name: str) -> list[str]:
    if not all(texts):
        param = name.format(texts.index(""))
        raise EmptyInput(f"{param} must not be an empty string", param=param)
    return texts


def read_dimensions(wanted: int | None, own: int) -> int | None:
    """Raises InvalidRequest."""
    if wanted is not None and not 1 <= wanted <= own:
        raise InvalidRequest(f"dimensions must be from 1 to {own} for this model", param="dimensions")
    return wanted


def read_prompt(name: str | None, given: Inputs, model: ServedModel) -> str:
    """What goes before each text: the model's prompt of that name, else the default one. Raises InvalidRequest."""
    if name is None:
        return model.default_prompt
    prompts: dict[str, str] = model.facts.get("prompts", {})
    if name not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise InvalidRequest(f"prompt_name is not one of the model's prompts ({known})", param="prompt_name")
    if given.texts is None:
        raise InvalidRequest(
            "prompt_name can't be given with token ids, which are used as they are", param="prompt_name"
        )
    return prompts[name]
