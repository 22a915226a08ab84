"""What the types of bodies do not say: the words that a field takes, and how many, how large and how long values are.

What still can't be said in a schema is which fields contradict each other.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from server.dialects.reading.forms import DTYPE_WORDS, ENDIANNESS_WORDS, FORMAT_WORDS
from server.dialects.reading.prompts import PURPOSE_WORDS
from server.dialects.reading.truncation import DIRECTION_WORDS
from server.requests.models import ServedModel

Schema = dict[str, Any]

_LISTS = ("input", "inputs", "texts", "documents", "sentences", "ids")  # of items, which are counted
_FILLED = (*_LISTS, "query", "text", "source_sentence")  # must not be empty
_WORDS = {
    "encoding_format": FORMAT_WORDS,
    "embedding_type": FORMAT_WORDS,
    "embed_dtype": DTYPE_WORDS,
    "output_dtype": DTYPE_WORDS,
    "endianness": ENDIANNESS_WORDS,
    "truncation_direction": DIRECTION_WORDS,
    "truncation_side": DIRECTION_WORDS,
    "aggregation_strategy": ("none", "simple", "first", "average", "max"),
    "on_error": ("null", "fail"),
}
_OWN_WORDS = {("RerankBody", "encoding_format"): ("float", "bytes")}
_MAY_BE_EMPTY = {("OllamaEmbedBody", "input")}  # then a model is loaded
_QUERY_OR_DOCUMENT = ("query", "search_query", "retrieval.query", "document", "passage", "search_document")
_LEAST = {"dimensions": 0, "output_dimension": 1, "num_ctx": 1, "top_n": 0, "top_k": 0, "max_tokens": 1}
_OWN_LEAST = {(name, "dimensions"): 1 for name in ("EmbedBody", "RootBody", "Config")}
_LEAST |= {"max_tokens_per_doc": 0, "max_chunks_per_doc": 1, "truncate_prompt_tokens": 1}


def refine(components: Schema, names: Iterable[str], *, max_items: int, model: ServedModel | None) -> None:
    """Adds to the schemas of bodies what the first model and the server's limits allow."""
    for name in names:
        properties = components[name].get("properties", {})
        for field in properties.keys() - components[name].get("required", ()):
            if "default" not in properties[field] and properties[field].get("type") != "boolean":
                properties[field] = {"anyOf": [properties[field], {"type": "null"}]}  # null is as good as nothing
        if "parameters" in properties and name == "RootBody":
            properties["parameters"] = {"description": "Of a similarity; otherwise anything"}
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
    words = _OWN_WORDS.get((name, field)) or _words_of(field, model)
    if kind == "string" and words is not None:
        part["enum"] = list(words)
    elif kind == "integer" and field in _LEAST:
        part["minimum"] = _OWN_LEAST.get((name, field), _LEAST[field])
        if model is not None and field in ("dimensions", "output_dimension"):
            part["maximum"] = model.dimensions
        if model is not None and field == "truncate_prompt_tokens":
            part["maximum"] = model.max_seqlen
    elif kind == "array" and words is not None:
        part["items"] = {"enum": list(words)}
        part["minItems"], part["maxItems"] = 1, len(FORMAT_WORDS)
    elif kind == "array" and field == "outputs":
        part["minItems"] = 1
    elif kind == "object" and "properties" in part:
        for inner, schema in part["properties"].items():
            for inner_part in _parts(schema):
                _refine_part(name, inner, inner_part, max_items=max_items, model=model)
    elif field in _FILLED and (name, field) not in _MAY_BE_EMPTY:
        _fill(
            part,
            max_items=max_items if field in _LISTS else None,
            vocab_size=model.vocab_size if model else None,
            fills_items=field != "ids" and name != "RerankBody",
        )


def _words_of(field: str, model: ServedModel | None) -> Iterable[str] | None:
    if field == "prompt_name" and model is not None:
        return sorted(model.prompts) or None
    if field in ("input_type", "task"):
        return PURPOSE_WORDS if model is None else (*_QUERY_OR_DOCUMENT, *sorted(model.prompts))
    return _WORDS.get(field)


def _fill(part: Schema, *, max_items: int | None, vocab_size: int | None, fills_items: bool = True) -> None:
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
            if max_items is not None and items.get("type") != "integer":  # one list of ids is one item
                part.setdefault("maxItems", max_items)
            for inner in _parts(items) if fills_items else ():
                _fill(inner, max_items=None, vocab_size=vocab_size)
