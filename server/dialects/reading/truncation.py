"""What happens to texts that are too long, in all the spellings that clients have for it.

`truncate` is TEI's, Jina's and Ollama's switch, and NONE, START or END of Cohere; `truncation` is Voyage's switch.
`truncation_direction` is TEI's and `truncation_side` vLLM's. Cohere's `max_tokens` and vLLM's `truncate_prompt_tokens`
set a length for one request. Our `long_text` and Jina's `late_chunking` embed a long text in
chunks instead of cutting it.
"""

import msgspec

from engine.types import OutputKind
from server.dialects.reading.json_body import WORDS
from server.requests.errors import InvalidRequest, UnsupportedTask
from server.requests.models import ServedModel
from server.requests.work import Chunking
from tokenizer_pool.messages import Truncation

_DIRECTIONS = {
    "left": Truncation.LEFT,
    "Left": Truncation.LEFT,
    "right": Truncation.RIGHT,
    "Right": Truncation.RIGHT,
}
DIRECTION_WORDS = tuple(_DIRECTIONS)  # for the OpenAPI page
_ENDS = {"NONE": Truncation.NONE, "START": Truncation.LEFT, "END": Truncation.RIGHT}  # Cohere names what is cut off
END_WORDS = tuple(_ENDS)  # for the OpenAPI page
_AS_THE_MODEL = -1  # of truncate_prompt_tokens
_CHUNKINGS = {"truncate": Chunking.NONE, "chunk_average": Chunking.WINDOWS}
LONG_TEXT_WORDS = tuple(_CHUNKINGS)  # for the OpenAPI page


class TruncationFields(msgspec.Struct, kw_only=True):
    """What happens to texts that are too long."""

    truncate: bool | str | None = None  # None = as --auto-truncate says
    truncation: bool | None = None
    truncation_direction: str | None = None
    truncation_side: str | None = None
    truncate_prompt_tokens: int | None = None
    max_tokens: int | None = None


def read_truncation(fields: TruncationFields, model: ServedModel) -> Truncation:
    """Which end is cut off, if any. Raises InvalidRequest."""
    asked, wanted, direction = fields.truncate_prompt_tokens, fields.truncate, _direction(fields)
    if wanted is None and fields.truncation is None and direction is None and asked is None:
        return model.truncation  # nearly always
    if wanted is None:
        wanted = fields.truncation
    elif fields.truncation is not None:
        raise InvalidRequest(
            "truncation can't be given with truncate; they are names of one option", param="truncation"
        )
    if isinstance(wanted, str):
        wanted = WORDS.get(wanted, wanted)
    if isinstance(wanted, str):
        return _end(wanted, direction)
    if wanted is None:
        wanted = model.truncation is not Truncation.NONE or asked is not None
    return (direction or model.truncation or Truncation.RIGHT) if wanted else Truncation.NONE


def read_max_tokens(fields: TruncationFields, model: ServedModel) -> int | None:
    """The most tokens of each text, special ones included; None = as many as the model takes. Raises InvalidRequest."""
    asked, limit = fields.truncate_prompt_tokens, fields.max_tokens
    if asked is None:
        if limit is not None and limit < 1:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        return limit
    if limit is not None:
        raise InvalidRequest("max_tokens can't be given with truncate_prompt_tokens", param="max_tokens")
    if asked == _AS_THE_MODEL:
        return None
    if not 1 <= asked <= model.max_seqlen:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1, or from 1 to {model.max_seqlen} for this model",
            param="truncate_prompt_tokens",
        )
    return asked


def _direction(fields: TruncationFields) -> Truncation | None:
    """Raises InvalidRequest."""
    if fields.truncation_direction is None and fields.truncation_side is None:
        return None
    name, word = "truncation_direction", fields.truncation_direction
    if word is None:
        name, word = "truncation_side", fields.truncation_side
    elif fields.truncation_side is not None:
        raise InvalidRequest(
            "truncation_side can't be given with truncation_direction; they are names of one option",
            param="truncation_side",
        )
    direction = _DIRECTIONS.get(word or "")
    if direction is None:
        raise InvalidRequest(f"{name} must be left or right", param=name)
    return direction


def _end(word: str, direction: Truncation | None) -> Truncation:
    """Of Cohere's words. Raises InvalidRequest."""
    end = _ENDS.get(word)
    if end is None:
        raise InvalidRequest("truncate must be true, false, NONE, START or END", param="truncate")
    if direction is not None and end is not Truncation.NONE and end is not direction:
        raise InvalidRequest("truncate names another end than the direction", param="truncate")
    return end


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
