"""Whether the tokens that a tokenizer puts around every text have a row in the model's embedding table."""

from collections.abc import Iterator
from typing import Any

from engine.model_folder import ModelFolder
from engine.model_json import Json, object_in, read_optional
from engine.types import ModelError


def check_special_tokens(folder: ModelFolder) -> None:
    """Raises ModelError where every text would hold an id that the model has no row for.

    Other ids are looked at when they come; see tokenizer_pool.
    """
    tokenizer = read_optional(folder.path / folder.tokenizer_folder / "tokenizer.json")
    largest = max((*_ids(object_in(tokenizer, "post_processor")), *_late_ids(folder)), default=-1)
    if largest >= folder.vocab_size and not folder.is_static:
        raise ModelError(
            f"tokenizer.json puts the token {largest} around texts, and the model has {folder.vocab_size} rows for "
            "tokens (vocab_size in config.json): they are not of the same model"
        )


def _late_ids(folder: ModelFolder) -> Iterator[int]:
    """What a late-interaction model has put into queries and documents, and into queries that are too short."""
    if folder.late is not None:
        put_in = (folder.late.query_marker_id, folder.late.document_marker_id, folder.late.expansion_id)
        yield from (each for each in put_in if each is not None)


def _ids(processor: Json) -> Iterator[int]:
    """Of a post-processor, which may be several in a row."""
    for part in processor.get("processors") or ():
        if isinstance(part, dict):
            yield from _ids(part)
    named = processor.get("special_tokens")  # of a template: name -> {"ids": [...]}
    for token in named.values() if isinstance(named, dict) else ():
        yield from _numbers(token.get("ids") if isinstance(token, dict) else ())
    for name in ("cls", "sep"):  # of BERT's and RoBERTa's: [text, id]
        yield from _numbers(processor.get(name))


def _numbers(values: Any) -> Iterator[int]:
    yield from (value for value in (values if isinstance(values, list) else ()) if type(value) is int)
