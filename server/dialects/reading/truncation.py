"""What happens to texts that are too long, in all the spellings that clients have for it.

`truncate` is TEI's, Jina's and Ollama's switch, and NONE, START or END of Cohere; `truncation` is Voyage's switch.
`truncation_direction` is TEI's and `truncation_side` vLLM's. Cohere's `max_tokens` and vLLM's `truncate_prompt_tokens`
set a length for one request.
"""

import msgspec

from server.dialects.reading.lossless import WORDS
from server.requests.errors import InvalidRequest
from server.requests.models import ServedModel
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
