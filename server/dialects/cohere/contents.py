"""Cohere's `inputs`: lists of parts, of which only texts are taken."""

from typing import Annotated

import msgspec

from server.dialects.reading.inputs import check_num_items
from server.dialects.reading.json_body import parse
from server.requests.errors import EmptyInput, InvalidRequest

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_SOME_TEXT = {"type": "object", "properties": {"text": {"type": "string", "minLength": 1}}, "required": ["text"]}
CONTENTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"content": {"type": "array", "items": _PART, "contains": _SOME_TEXT}},
        "required": ["content"],
    },
}
_STRINGS_AN_ITEM = 32  # that the parts of one input may have; for each 32 more it counts as another item


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Input(msgspec.Struct):
    content: Annotated[list[_Part], msgspec.Meta(min_length=1)]


_INPUTS = msgspec.json.Decoder(list[_Input])


def read_contents(value: msgspec.Raw, field: str, *, max_items: int, may_be_empty: bool = False) -> list[str]:
    """One text of each input: its parts, each on a line of its own. Items are counted before they are decoded.

    Raises InvalidRequest, EmptyInput and MalformedBody.
    """
    raw = bytes(value)
    num_strings = (raw.count(b'"') - raw.count(b'\\"')) // 2
    check_num_items(-(-num_strings // _STRINGS_AN_ITEM), field, max_items=max_items)
    inputs = parse(_INPUTS, raw, field)
    if not inputs:
        raise EmptyInput(f"{field} must not be empty", param=field)
    check_num_items(len(inputs), field, max_items=max_items)
    texts = [_joined(each.content, f"{field}[{index}]") for index, each in enumerate(inputs)]
    if not may_be_empty and not all(texts):
        param = f"{field}[{texts.index('')}]"
        raise EmptyInput(f"{param} must not be empty", param=param)
    return texts


def _joined(parts: list[_Part], name: str) -> str:
    for index, part in enumerate(parts):
        if part.type != "text" or part.text is None:
            param = f"{name}.content[{index}]"
            raise InvalidRequest(f"{param} must be a text: images are not supported", param=param)
    return "\n".join(part.text for part in parts if part.text)
