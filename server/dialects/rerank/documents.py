"""Documents as the rerank routes take them: texts, objects with a text, or objects whose fields are joined.

Items are counted before they are decoded, as in reading/inputs.py.
"""

from collections.abc import Sequence

import msgspec

from server.dialects.reading.inputs import TextObject, check_num_items, text_of
from server.dialects.reading.json_body import parse
from server.requests.errors import EmptyInput, InvalidRequest

DOCUMENT_LIST = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}
_MAX_RANK_FIELDS = 64
_STRINGS_AN_ITEM = 32  # that one document's object may have; for each 32 more it counts as another item

_TEXTS = msgspec.json.Decoder(list[str])
_DOCUMENTS = msgspec.json.Decoder(list[str | TextObject])
_OBJECTS = msgspec.json.Decoder(list[str | dict[str, msgspec.Raw]])
_NAMES = msgspec.json.Decoder(list[str])
_VALUE = msgspec.json.Decoder(str | int | float | bool | None)


def read_texts(value: msgspec.Raw, field: str, *, max_items: int) -> Sequence[str]:
    """Texts alone. Any may be empty. As all functions here, raises InvalidRequest, EmptyInput and MalformedBody."""
    texts = parse(_TEXTS, _counted(value, field, max_items), field)
    return _checked(texts, field, max_items)


def read_documents(value: msgspec.Raw, field: str, *, rank_fields: msgspec.Raw, max_items: int) -> Sequence[str]:
    """Texts and objects. Of an object its `text` is ranked, or what `rank_fields` names, each on a line of its own.

    Without `rank_fields` an image or another part beside the text is refused. A `url` tells where a text is from.
    """
    raw = _counted(value, field, max_items)
    names = _read_rank_fields(rank_fields)
    if names:
        records = parse(_OBJECTS, raw, field)
        documents = [
            item if isinstance(item, str) else _joined(item, names, f"{field}[{index}]")
            for index, item in enumerate(records)
        ]
    else:
        items = parse(_DOCUMENTS, raw, field)
        documents = [
            item if isinstance(item, str) else text_of(item, f"{field}[{index}]") for index, item in enumerate(items)
        ]
    return _checked(documents, field, max_items)


def _counted(value: msgspec.Raw, field: str, max_items: int) -> bytes:
    raw = bytes(value)
    if not raw.startswith(b"["):
        raise InvalidRequest(f"{field} must be a list of texts", param=field)
    num_strings = (raw.count(b'"') - raw.count(b'\\"')) // 2
    check_num_items(-(-num_strings // _STRINGS_AN_ITEM), field, max_items=max_items)
    return raw


def _checked(documents: Sequence[str], field: str, max_items: int) -> Sequence[str]:
    if not documents:
        raise EmptyInput(f"{field} must not be empty", param=field)
    check_num_items(len(documents), field, max_items=max_items)
    return documents


def _read_rank_fields(value: msgspec.Raw) -> list[str]:
    """Each once; none if the text is meant."""
    raw = bytes(value)
    if raw in (b"", b"null"):
        return []
    num_strings = (raw.count(b'"') - raw.count(b'\\"')) // 2  # before they are decoded
    names = parse(_NAMES, raw, "rank_fields") if num_strings <= _MAX_RANK_FIELDS else None
    if names is None or len(names) > _MAX_RANK_FIELDS:
        raise InvalidRequest(f"rank_fields must be at most {_MAX_RANK_FIELDS} names", param="rank_fields")
    return list(dict.fromkeys(names))


def _joined(document: dict[str, msgspec.Raw], names: Sequence[str], param: str) -> str:
    """Fields that are missing or null are left out."""
    lines = []
    for name in names:
        if name in document:
            given = parse(_VALUE, document[name], param)
            if given is not None:
                lines.append(given if isinstance(given, str) else bytes(document[name]).decode())
    if not lines:
        raise InvalidRequest(f"{param} has none of rank_fields", param=param)
    return "\n".join(lines)
