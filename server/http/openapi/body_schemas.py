"""What the types of bodies do not say: the words that a field takes, and how many, how large and how long values are.

What still can't be said in a schema is which fields contradict each other, and what `on_error` forgives.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from server.dialects.reading.prompts import max_prompt_chars, purpose_words, side_words
from server.dialects.reading.row_options import DTYPE_WORDS, ENDIANNESS_WORDS, FORMAT_WORDS, LISTED_WORDS
from server.dialects.reading.truncation import DIRECTION_WORDS, END_WORDS, LONG_TEXT_WORDS
from server.dialects.weaviate import pooling_words
from server.requests.models import ServedModel

Schema = dict[str, Any]

_TEXT_LISTS = ("input", "inputs", "texts", "documents", "sentences", "queries", "items", "text_1", "text_2")
_LISTS = (*_TEXT_LISTS, "data_1", "data_2", "ids", "tokens", "messages", "instances")  # of items, which are counted
_FILLED = (*_LISTS, "query", "text", "source_sentence", "property")  # must not be empty
_WORDS = {
    "encoding_format": FORMAT_WORDS,
    "embedding_type": FORMAT_WORDS,
    "embed_dtype": DTYPE_WORDS,
    "output_dtype": DTYPE_WORDS,
    "endianness": ENDIANNESS_WORDS,
    "truncate": END_WORDS,
    "truncation_direction": DIRECTION_WORDS,
    "truncation_side": DIRECTION_WORDS,
    "aggregation_strategy": ("none", "simple", "first", "average", "max"),
    "on_error": ("null", "fail"),
    "long_text": LONG_TEXT_WORDS,
}
_RERANK = "RerankBody"  # what the names of its forms begin with
_TEIS_QUERY = ("RerankBodyOfTexts", "query")  # may be empty if no text is
_TEXTS_IN_PROMPT = ("PromptBody", "prompt")  # vLLM's texts
_WITH_TEXT_IN_PROMPT = ("PromptBody", "OllamaPromptBody")  # elsewhere it goes before a text
_OLLAMAS_INPUT = ("OllamaEmbedBody", "input")  # empty, it loads a model
_SIDES_ONLY = ("InputsBody", "EmbedHybridBody")  # where input_type and task are a side of a search
_LEAST = {"dimensions": 0, "output_dimension": 1, "num_ctx": 1, "top_n": 0, "top_k": 0, "max_tokens": 1}
_LEAST |= {"max_tokens_per_doc": 0, "max_chunks_per_doc": 1, "truncate_prompt_tokens": 1}
_OWN_LEAST = {(name, "dimensions"): 1 for name in ("EmbedBody", "RootBody", "Config")}


def refine(components: Schema, names: Iterable[str], *, max_items: int, model: ServedModel | None) -> None:
    """Adds to the schemas of bodies what the first model and the server's limits allow."""
    for name in names:
        properties = components[name].get("properties", {})
        for field in properties.keys() - components[name].get("required", ()):
            if "default" not in properties[field] and properties[field].get("type") != "boolean":
                properties[field] = {"anyOf": [properties[field], {"type": "null"}]}  # null is as good as nothing
        for field, schema in properties.items():
            for part in _parts(schema):
                _refine_part(name, field, part, max_items=max_items, model=model)


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schema, or its alternatives, without null."""
    for part in schema.get("anyOf", [schema]):
        if "anyOf" in part:
            yield from _parts(part)
        elif part.get("type") != "null":
            yield part


def _refine_part(name: str, field: str, part: Schema, *, max_items: int, model: ServedModel | None) -> None:
    kind = part.get("type")
    words = None if "enum" in part else _words_of(name, field, model)
    if kind == "string" and words is not None:
        part["enum"] = list(words)
    elif kind == "string" and field == "prompt" and name not in _WITH_TEXT_IN_PROMPT and model is not None:
        part["maxLength"] = max_prompt_chars(model)
    elif kind == "integer" and field in _LEAST:
        _limit(name, field, part, model)
    elif kind == "array" and field == "encoding_format":
        part["items"] = {"enum": sorted(LISTED_WORDS)}
        part["minItems"], part["maxItems"] = 1, len(FORMAT_WORDS)
    elif kind == "object" and "properties" in part:
        for inner, schema in part["properties"].items():
            for inner_part in _parts(schema):
                _refine_part(name, inner, inner_part, max_items=max_items, model=model)
    elif (field in _FILLED and (name, field) != _TEIS_QUERY) or (name, field) == _TEXTS_IN_PROMPT:
        is_list = field in _LISTS or (name, field) == _TEXTS_IN_PROMPT
        _fill(part, max_items=max_items if is_list else None, vocab_size=model.vocab_size if model else None)
        if field == "tokens" or name.startswith(_RERANK):
            for item in _parts(part.get("items", {})):
                _may_be_empty(item)
        if (name, field) == _OLLAMAS_INPUT:
            _may_be_empty(part)


def _words_of(name: str, field: str, model: ServedModel | None) -> Iterable[str] | None:
    if field == "encoding_format" and name.startswith(_RERANK):
        return ("float", "bytes")
    if model is not None:
        if field == "prompt_name":
            return sorted(model.prompts) or None
        if field in ("input_type", "task"):
            return side_words() if name in _SIDES_ONLY else purpose_words(model)
        if field == "pooling_strategy":
            return pooling_words(model)
    return _WORDS.get(field)


def _limit(name: str, field: str, part: Schema, model: ServedModel | None) -> None:
    if field == "truncate_prompt_tokens":
        del part["type"]
        number = {"type": "integer", "minimum": 1, **({"maximum": model.max_seqlen} if model else {})}
        part["anyOf"] = [{"const": -1}, number]
        return
    part["minimum"] = _OWN_LEAST.get((name, field), _LEAST[field])
    if model is not None and field in ("dimensions", "output_dimension"):
        part["maximum"] = model.dimensions
        if model.truncate_dim is not None:
            part["default"] = model.truncate_dim


def _fill(part: Schema, *, max_items: int | None, vocab_size: int | None) -> None:
    """No empty text or list, not too many items, and ids of the vocabulary."""
    match part.get("type"):
        case "string":
            part["minLength"] = 1
        case "integer":
            part["minimum"] = 0
            if vocab_size:
                part["maximum"] = vocab_size - 1
        case "array":
            part["minItems"] = 1
            items = part["items"]
            if max_items is not None and not _is_one_item(items):
                part.setdefault("maxItems", max_items)
            for inner in _parts(items) if "contains" not in part else ():  # that says which of them may be empty
                _fill(inner, max_items=None, vocab_size=vocab_size)
        case "object" if "text" in part.get("properties", ()):
            _fill(part["properties"]["text"], max_items=None, vocab_size=None)


def _is_one_item(items: Schema) -> bool:
    """Whether a list of these is one item: token ids, or messages."""
    return items.get("type") == "integer" or "role" in items.get("properties", ())


def _may_be_empty(part: Schema) -> None:
    part.pop("minLength", None)
    part.pop("minItems", None)
