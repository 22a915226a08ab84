"""`long_text` and Jina's `late_chunking`: how long texts are embedded, other than by cutting them."""

from engine.types import OutputKind
from server.requests.errors import InvalidRequest, UnsupportedTask
from server.requests.models import ServedModel
from server.requests.work import Chunking

_CHUNKINGS = {"truncate": Chunking.NONE, "chunk_average": Chunking.WINDOWS}
LONG_TEXT_WORDS = tuple(_CHUNKINGS)  # for the OpenAPI page


def read_chunking(
    long_text: str | None,
    late_chunking: bool | None = None,
    *,
    model: ServedModel,
    are_texts: bool,
    allows_errors: bool,
) -> Chunking:
    """Raises InvalidRequest and UnsupportedTask, naming the field. `are_texts` is False for token ids and chats."""
    if long_text is None and not late_chunking:
        return Chunking.NONE  # nearly always
    field, chunking = ("late_chunking", Chunking.LATE) if late_chunking else ("long_text", _read_word(long_text))
    if chunking is Chunking.NONE:
        return chunking
    if late_chunking and long_text is not None:
        raise InvalidRequest("long_text can't be given with late_chunking", param="long_text")
    if not are_texts:
        raise InvalidRequest(f"{field} is for texts, not for token ids or chats", param=field)
    if allows_errors:
        raise InvalidRequest(f"{field} can't be given with on_error", param=field)
    if chunking is Chunking.LATE and OutputKind.TOKENS not in model.outputs:
        raise UnsupportedTask("late_chunking needs rows of single tokens, which this model does not give", param=field)
    return chunking


def _read_word(word: str | None) -> Chunking:
    if word not in _CHUNKINGS:
        raise InvalidRequest(f"long_text must be {' or '.join(_CHUNKINGS)}", param="long_text")
    return _CHUNKINGS[word]
