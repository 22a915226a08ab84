"""The fields that say how texts become tokens, by the names of OpenAI's, TEI's, vLLM's, Voyage's, Jina's and Cohere's
clients: `read_cut` says what happens to texts that are too long, `read_chunking` whether they are embedded in chunks,
`read_prompt` and `read_adapter` what goes before each text, `read_is_query` on which side of a search it is.

`truncate` is TEI's, Jina's and Ollama's switch, and NONE, START or END of Cohere; `truncation` is Voyage's switch.
`truncation_direction` is TEI's and `truncation_side` vLLM's. Cohere's `max_tokens` and vLLM's `truncate_prompt_tokens`
set a length for one request. Our `long_text` and Jina's `late_chunking` embed a long text in
chunks instead of cutting it.

`prompt_name` is one of the model's own prompts, `prompt` a text. `input_type` (Cohere's and Voyage's) and `task`
(Jina's) say what the text is for. So does a word behind the model's name (`model:query`), for clients that can send
nothing else.
"""

from typing import TypedDict

import msgspec

from engine.types import OutputKind
from server.dialects.reading.json_body import WORDS
from server.requests.errors import InvalidRequest, UnsupportedTask
from server.requests.models import ServedModel
from server.requests.prompts import Purpose, adapter_for, adapter_named, no_adapter, prompt_for
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
_MAX_CHARS_PER_TOKEN = 8  # of a literal prompt; more would leave no room for the text
_NEWEST = "latest"  # what Ollama's clients have behind a name
_PURPOSES = {
    "query": Purpose.QUERY,
    "search_query": Purpose.QUERY,
    "retrieval.query": Purpose.QUERY,
    "document": Purpose.DOCUMENT,
    "passage": Purpose.DOCUMENT,
    "search_document": Purpose.DOCUMENT,
    "retrieval.passage": Purpose.DOCUMENT,
    "classification": Purpose.CLASSIFICATION,
    "clustering": Purpose.CLUSTERING,
    "separation": Purpose.CLUSTERING,
    "text-matching": Purpose.SIMILARITY,
}
_SIDES = (Purpose.QUERY, Purpose.DOCUMENT)
PROMPT_FIELDS = ("prompt_name", "prompt", "input_type", "task")


class TruncationFields(msgspec.Struct, kw_only=True):
    """The fields that say what happens to texts that are too long."""

    truncate: bool | str | None = None  # None = as --auto-truncate says
    truncation: bool | None = None
    truncation_direction: str | None = None
    truncation_side: str | None = None
    truncate_prompt_tokens: int | None = None
    max_tokens: int | None = None


class Cut(TypedDict):
    """The way in which a request for rows says that its texts are cut."""

    truncation: Truncation
    max_tokens: int | None


def read_cut(fields: TruncationFields, model: ServedModel) -> Cut:
    """The end that is cut off, if any, and the most tokens of each text, special ones included; None = as many as the
    model takes. Raises InvalidRequest."""
    sides = fields.truncation_direction, fields.truncation_side
    given = (fields.truncate, fields.truncation, *sides, fields.truncate_prompt_tokens, fields.max_tokens)
    if given.count(None) == len(given):
        return {"truncation": model.truncation, "max_tokens": None}  # nearly always
    return {"truncation": _truncation(fields, model), "max_tokens": _max_tokens(fields, model)}


def _truncation(fields: TruncationFields, model: ServedModel) -> Truncation:
    """The end that is cut off. Raises InvalidRequest."""
    asked, wanted, direction = fields.truncate_prompt_tokens, fields.truncate, _direction(fields)
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


def _max_tokens(fields: TruncationFields, model: ServedModel) -> int | None:
    """The most tokens of each text; None = as many as the model takes. Raises InvalidRequest."""
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
    """The end that either field names, None if none is given. Raises InvalidRequest."""
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
    """The end that one of Cohere's words names. Raises InvalidRequest."""
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
    """How sequences are made of the texts. `are_texts` is False for token ids and chats. Raises InvalidRequest and
    UnsupportedTask, naming the field."""
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


class PromptFields(TruncationFields, kw_only=True):
    """How texts become tokens."""

    prompt_name: str | None = None
    prompt: str | None = None
    input_type: str | None = None
    task: str | None = None


def purpose_words(model: ServedModel) -> list[str]:
    """The words that `input_type` and `task` may be where texts get a prompt, for the OpenAPI page."""
    by_purpose = (word for word, purpose in _PURPOSES.items() if prompt_for(model, purpose) is not None)
    return list(dict.fromkeys([*model.prompts, *by_purpose]))


def side_words() -> list[str]:
    """The words for queries and documents."""
    return [word for word, purpose in _PURPOSES.items() if purpose in _SIDES]


def max_prompt_chars(model: ServedModel) -> int:
    """The most characters of `prompt`."""
    return _MAX_CHARS_PER_TOKEN * model.max_seqlen


class Prompts(TypedDict, total=False):
    """The way in which a request for rows says what goes before its texts, and which adapter computes them."""

    prompt: str
    adapter: int


NO_PROMPT: Prompts = {}


def read_prompts(
    fields: PromptFields, model: ServedModel, *, name: str | None = None, are_ids: bool = False
) -> Prompts:
    """The prompt and the adapter, as `read_prompt` and `read_adapter` choose them. Raises InvalidRequest."""
    prompt = read_prompt(fields, model, name=name, are_ids=are_ids)
    return {"prompt": prompt, "adapter": read_adapter(fields, model, name=name)}


def read_prompt(fields: PromptFields, model: ServedModel, *, name: str | None = None, are_ids: bool = False) -> str:
    """The prompt before each text. `name` is the request's `model`, `are_ids` whether token ids are among the items.

    `prompt` and `prompt_name` go before `input_type` and `task`, and these before a word behind the model's name.
    Raises InvalidRequest.
    """
    field, word = _purpose_word(fields, model, name)
    prompt = model.default_prompt if word is None else _for_word(word, model, field)
    if fields.prompt_name is not None:
        field, prompt = "prompt_name", _named(fields.prompt_name, model)
    if fields.prompt is not None:
        if fields.prompt_name is not None:
            raise InvalidRequest("prompt can't be given with prompt_name", param="prompt")
        field, prompt = "prompt", _literal(fields.prompt, model)
    if field and prompt and are_ids and not model.decodes_ids:
        raise InvalidRequest(f"{field} can't be given with token ids, which are used as they are", param=field)
    return prompt


def read_adapter(fields: PromptFields, model: ServedModel, *, name: str | None = None) -> int:
    """The number of the adapter that computes the texts: the one of the prompt that `read_prompt` chooses.

    Raises InvalidRequest, also for a word that the model has a prompt for and no adapter.
    """
    if not model.adapters:
        return 0
    field, word = _purpose_word(fields, model, name)
    purpose = _PURPOSES.get(word) if word else None
    if fields.prompt_name is not None:
        field, word, purpose = "prompt_name", fields.prompt_name, None
    if word is None:
        return adapter_named(model, None)
    if adapter := adapter_named(model, word):
        return adapter
    if purpose is None:
        raise no_adapter(model, word, field=field)
    return adapter_for(model, purpose, field=field)


def read_is_query(fields: PromptFields, model: ServedModel, *, name: str | None = None) -> bool:
    """Whether the texts are queries, for models that treat these differently; else they are documents.

    Raises InvalidRequest.
    """
    field, word = _purpose_word(fields, model, name)
    purpose = Purpose.DOCUMENT if word is None else _PURPOSES.get(word)
    if purpose not in _SIDES:
        raise InvalidRequest(f"{field} must be query or document", param=field)
    return purpose is Purpose.QUERY


def _purpose_word(fields: PromptFields, model: ServedModel, name: str | None) -> tuple[str, str | None]:
    """The field that says what the texts are for, and its word; ("", None) if none does. Raises InvalidRequest."""
    if fields.input_type is not None:
        if fields.task is not None:
            raise InvalidRequest("task can't be given with input_type; they are names of one option", param="task")
        return "input_type", fields.input_type
    if fields.task is not None:
        return "task", fields.task
    if name is None or ":" not in name or name == model.name:
        return "", None
    stem, _, word = name.rpartition(":")
    if word in _PURPOSES or word in model.prompts or (stem == model.name and word != _NEWEST):
        return "model", word
    return "", None  # a single model takes any name


def _for_word(word: str, model: ServedModel, field: str) -> str:
    """The prompt for a purpose, or the model's own of that name. Raises InvalidRequest."""
    if word in model.prompts:
        return model.prompts[word]
    purpose = _PURPOSES.get(word)
    if purpose is None:
        known = ", ".join(sorted(_PURPOSES.keys() | model.prompts.keys()))
        raise InvalidRequest(f"{field} must name one of {known}", param=field)
    prompt = prompt_for(model, purpose)
    if prompt is None:
        raise InvalidRequest(
            f"{field} is not one that this model has a prompt for; prompt_name takes one of {_names(model)}",
            param=field,
        )
    return prompt


def _named(name: str, model: ServedModel) -> str:
    """The model's own prompt of this name. Raises InvalidRequest."""
    if name not in model.prompts:
        raise InvalidRequest(f"prompt_name is not one of the model's prompts ({_names(model)})", param="prompt_name")
    return model.prompts[name]


def _literal(prompt: str, model: ServedModel) -> str:
    """The prompt, if it is not too long. Raises InvalidRequest."""
    max_chars = max_prompt_chars(model)
    if len(prompt) > max_chars:
        raise InvalidRequest(f"prompt has more than {max_chars} characters", param="prompt")
    return prompt


def _names(model: ServedModel) -> str:
    return ", ".join(sorted(model.prompts)) or "none"
