"""What goes before each text: prompt_name, prompt, input_type, task, or a word behind the model's name (`model:query`).

`prompt_name` is one of the model's own prompts, `prompt` a text. `input_type` (Cohere's and Voyage's) and `task`
(Jina's) say what the text is for. So does the word behind the name, for clients that can send nothing else.
"""

from server.dialects.reading.inputs import Inputs
from server.dialects.reading.truncation import TruncationFields
from server.requests.errors import InvalidRequest
from server.requests.models import ServedModel
from server.requests.prompts import Purpose, adapter_for, adapter_named, no_adapter, prompt_for

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


class PromptFields(TruncationFields, kw_only=True):
    """How texts become tokens."""

    prompt_name: str | None = None
    prompt: str | None = None
    input_type: str | None = None
    task: str | None = None


def purpose_words(model: ServedModel) -> list[str]:
    """What `input_type` and `task` may be where texts get a prompt, for the OpenAPI page."""
    by_purpose = (word for word, purpose in _PURPOSES.items() if prompt_for(model, purpose) is not None)
    return list(dict.fromkeys([*model.prompts, *by_purpose]))


def side_words() -> list[str]:
    """The same where they say on which side of a search the texts are."""
    return [word for word, purpose in _PURPOSES.items() if purpose in _SIDES]


def max_prompt_chars(model: ServedModel) -> int:
    """Of `prompt`."""
    return _MAX_CHARS_PER_TOKEN * model.max_seqlen


def read_prompt(fields: PromptFields, given: Inputs, model: ServedModel, *, name: str | None = None) -> str:
    """What goes before each text. `name` is the request's `model`.

    `prompt` and `prompt_name` outrank the purpose, and fields the word behind the name. Raises InvalidRequest.
    """
    field, word = _purpose_word(fields, model, name)
    prompt = model.default_prompt if word is None else _for_word(word, model, field)
    if fields.prompt_name is not None:
        field, prompt = "prompt_name", _named(fields.prompt_name, model)
    if fields.prompt is not None:
        if fields.prompt_name is not None:
            raise InvalidRequest("prompt can't be given with prompt_name", param="prompt")
        field, prompt = "prompt", _literal(fields.prompt, model)
    if field and prompt and given.token_ids is not None and not model.decodes_ids:
        raise InvalidRequest(f"{field} can't be given with token ids, which are used as they are", param=field)
    return prompt


def read_adapter(fields: PromptFields, model: ServedModel, *, name: str | None = None) -> int:
    """Which of the model's adapters computes the texts: the one of the prompt that `read_prompt` chooses.

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
    """Raises InvalidRequest."""
    if name not in model.prompts:
        raise InvalidRequest(f"prompt_name is not one of the model's prompts ({_names(model)})", param="prompt_name")
    return model.prompts[name]


def _literal(prompt: str, model: ServedModel) -> str:
    """Raises InvalidRequest."""
    max_chars = max_prompt_chars(model)
    if len(prompt) > max_chars:
        raise InvalidRequest(f"prompt has more than {max_chars} characters", param="prompt")
    return prompt


def _names(model: ServedModel) -> str:
    return ", ".join(sorted(model.prompts)) or "none"
