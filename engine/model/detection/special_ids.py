"""Whether a model has rows for the tokens that are put around every text."""

from collections.abc import Iterator

from engine.model.detection.vocabulary import surrounding_ids
from engine.model.model_folder import ModelFolder
from engine.types import ModelError


def check_special_tokens(folder: ModelFolder) -> None:
    """Raises ModelError if every text would contain an id for which the model has no row.

    tokenizer_pool checks the other ids of each request.
    """
    largest = max((*surrounding_ids(folder.path / folder.tokenizer_folder), *_late_ids(folder)), default=-1)
    if largest >= folder.vocab_size and not folder.is_static:
        raise ModelError(
            f"tokenizer.json puts the token {largest} around texts, and the model has {folder.vocab_size} rows for "
            "tokens (vocab_size in config.json): they are not of the same model"
        )


def _late_ids(folder: ModelFolder) -> Iterator[int]:
    """The ids of a late-interaction model's markers and fill-in token."""
    if folder.late is not None:
        put_in = (folder.late.query_marker_id, folder.late.document_marker_id, folder.late.expansion_id)
        yield from (each for each in put_in if each is not None)
