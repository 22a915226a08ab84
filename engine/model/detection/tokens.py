"""Whether the tokens that a tokenizer puts around every text have a row in the model's embedding table."""

from collections.abc import Iterator

from engine.model.detection.vocabulary import surrounding_ids
from engine.model.model_folder import ModelFolder
from engine.types import ModelError


def check_special_tokens(folder: ModelFolder) -> None:
    """Raises ModelError where every text would hold an id that the model has no row for.

    Other ids are looked at when they come; see tokenizer_pool.
    """
    largest = max((*surrounding_ids(folder.path / folder.tokenizer_folder), *_late_ids(folder)), default=-1)
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
