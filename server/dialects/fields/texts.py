"""How texts become tokens: what goes before each text, what it is for, and what happens to texts that are too long.

`prompt_name` is one of the model's own prompts, `prompt` a text. `input_type` and `task` say what the text is for. So
does a word behind the model's name (`model:query`), for clients that can send nothing else. `truncate` is a switch, or
one of Cohere's words NONE, START and END. `long_text`, `late_chunking` and `late_chunking_params` embed a long text in
chunks instead of cutting it.
"""

from functools import partial
from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from engine.types import OutputKind
from server.dialects.fields.field import Fields, names_of, option, passed_over
from server.dialects.reading.json_body import WORDS, LosslessDecoder, is_given, parse
from server.requests.errors import InvalidRequest, UnsupportedTask
from server.requests.models import ServedModel
from server.requests.prompts import NEWEST, PURPOSES, Purpose, adapter_for, adapter_named, no_adapter, prompt_for
from server.requests.work import Chunking
from tokenizer_pool.messages import Truncation

_Value = TypeVar("_Value")
_DIRECTIONS = {"left": Truncation.LEFT, "Left": Truncation.LEFT, "right": Truncation.RIGHT, "Right": Truncation.RIGHT}
_ENDS = {"NONE": Truncation.NONE, "START": Truncation.LEFT, "END": Truncation.RIGHT}  # Cohere names what is cut off
_AS_THE_MODEL = -1  # of truncate_prompt_tokens
_CHUNKINGS = {"truncate": Chunking.NONE, "chunk_average": Chunking.WINDOWS}
LATE_CHUNKING = "late_chunking"
LATE_CHUNKING_PARAMS = "late_chunking_params"
_MAX_CHUNK_SIZE = 2**63 - 1  # vLLM's
TRUNCATION = "truncation"
_Truncate = option(
    "whether long texts are cut or refused, or at which end they are cut",
    by="TEI, Cohere, Jina, Ollama",
    neutral=(False, "NONE"),
    words=tuple(_ENDS),
)
_side = partial(option, "the end at which long texts are cut", words=tuple(_DIRECTIONS))


class TruncateField(Fields, kw_only=True):
    """Whether texts that are too long are cut."""

    truncate: Annotated[bool | None, _Truncate] = None  # None = as --auto-truncate says


class TeisTruncationFields(Fields, kw_only=True):
    """The fields that say what happens to texts that are too long, by TEI's names."""

    truncate: Annotated[bool | str | None, _Truncate] = None  # None = as --auto-truncate says
    truncation_direction: Annotated[str | None, _side(by="TEI", neutral=("right", "Right"))] = None


class TruncationFields(TeisTruncationFields, kw_only=True):
    """The fields that say what happens to texts that are too long."""

    truncation: Annotated[
        bool | None, option("whether long texts are cut or refused", by="Voyage", neutral=(False,))
    ] = None
    truncation_side: Annotated[str | None, _side(by="vLLM", neutral=("right",))] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        option(
            "the length to which texts are cut, special tokens included; -1 is the model's",
            by="vLLM",
            least=1,
            besides=_AS_THE_MODEL,
            of_model=lambda model: {"maximum": model.max_seqlen},
        ),
    ] = None
    max_tokens: Annotated[int | None, option("the length from which texts are too long", by="Cohere", least=1)] = None


class PairLengthFields(Fields, kw_only=True):
    """The lengths of a query and of a document, before anything is put around them; 0 = all, as vLLM has it."""

    max_tokens_per_query: Annotated[
        int | None, option("the length to which queries are cut", by="vLLM", neutral=(0,), least=0)
    ] = None
    max_tokens_per_doc: Annotated[
        int | None, option("the length to which documents are cut", by="Cohere, vLLM", least=0)
    ] = None


class PairLengths(TypedDict):
    """The way in which a request for scores of pairs says that its texts are cut."""

    max_query_tokens: int | None
    max_document_tokens: int | None


def read_pair_lengths(fields: PairLengthFields, model: ServedModel) -> PairLengths:
    """The most tokens of a query's and of a document's own text; None = as many as the model takes. Raises
    InvalidRequest."""
    for name in names_of(PairLengthFields):
        if (number := getattr(fields, name)) is not None and number < 0:
            raise InvalidRequest(f"{name} must be at least 0", param=name)
    return {
        "max_query_tokens": _below(model.max_seqlen, fields.max_tokens_per_query),
        "max_document_tokens": _below(model.max_seqlen, fields.max_tokens_per_doc),
    }


def _below(most: int, limit: int | None) -> int | None:
    """The limit if it can matter."""
    return limit if limit and limit < most else None


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
    name, word = _either(truncation_direction=fields.truncation_direction, truncation_side=fields.truncation_side)
    direction = None if word is None else _DIRECTIONS.get(word)
    if word is not None and direction is None:
        raise InvalidRequest(f"{name} must be left or right", param=name)
    _, wanted = _either(truncate=fields.truncate, truncation=fields.truncation)
    if isinstance(wanted, str):
        wanted = WORDS.get(wanted, wanted)
    if isinstance(wanted, str):
        return _end(wanted, direction)
    if wanted is None:
        wanted = model.truncation is not Truncation.NONE or fields.truncate_prompt_tokens is not None
    return (direction or model.truncation or Truncation.RIGHT) if wanted else Truncation.NONE


def _end(word: str, direction: Truncation | None) -> Truncation:
    """The end that one of Cohere's words names."""
    end = _ENDS.get(word)
    if end is None:
        raise InvalidRequest("truncate must be true, false, NONE, START or END", param="truncate")
    if direction is not None and end is not Truncation.NONE and end is not direction:
        raise InvalidRequest("truncate names another end than the direction", param="truncate")
    return end


def _max_tokens(fields: TruncationFields, model: ServedModel) -> int | None:
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


def _either(**values: _Value | None) -> tuple[str, _Value | None]:
    """The name that is given and its value; ("", None) if none is. Raises InvalidRequest for two."""
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return "", None
    first, *others = given
    if others:
        raise InvalidRequest(f"{others[0]} can't be given with {first}; they are names of one option", param=others[0])
    return first, given[first]


class LongTextField(Fields, kw_only=True):
    """Whether a long text is embedded in chunks."""

    long_text: Annotated[
        str | None, option("long texts in chunks", by="ours", neutral=("truncate",), words=tuple(_CHUNKINGS))
    ] = None


class LateChunkingParams(Fields, kw_only=True, forbid_unknown_fields=True):
    """How each text is cut into chunks."""

    chunk_size: Annotated[
        int, option("its tokens", by="vLLM", least=1, of_model=lambda _: {"maximum": _MAX_CHUNK_SIZE})
    ]


_PARAMS: dict[str, Any] = {
    "type": "object",
    "properties": {"chunk_size": {"type": "integer"}},
    "required": ["chunk_size"],
    "additionalProperties": False,
}
_PARAMS_DECODER = LosslessDecoder[LateChunkingParams](LateChunkingParams)


class ChunkingFields(LongTextField, kw_only=True):
    """How a long text, or all texts of a body, are embedded in chunks."""

    late_chunking: Annotated[bool | None, option("all texts as chunks of one", by="Jina", neutral=(False,))] = None
    late_chunking_params: Annotated[
        msgspec.Raw | UnsetType,
        option("each text in chunks of so many tokens", by="vLLM", schema=_PARAMS, inner=LateChunkingParams),
    ] = UNSET


def read_chunking(
    fields: LongTextField | ChunkingFields,
    *,
    model: ServedModel,
    are_texts: bool,
    allows_errors: bool,
    chunk_size: int = 0,
) -> Chunking:
    """How sequences are made of the texts. `are_texts` is False for token ids and chats, and `chunk_size` is what
    read_chunk_size reads. Raises InvalidRequest and UnsupportedTask, naming the field."""
    word, is_late = fields.long_text, bool(getattr(fields, LATE_CHUNKING, None))
    if word is None and not is_late and not chunk_size:
        return Chunking.NONE  # nearly always
    field, chunking = "long_text", _CHUNKINGS.get(word or "")
    if is_late or chunk_size:
        field, chunking = (LATE_CHUNKING_PARAMS, Chunking.FIXED) if chunk_size else (LATE_CHUNKING, Chunking.LATE)
    if chunking is None:
        raise InvalidRequest(f"long_text must be {' or '.join(_CHUNKINGS)}", param=field)
    if chunking is Chunking.NONE:
        return chunking
    for other, is_asked in (("long_text", word is not None), (LATE_CHUNKING, is_late)):
        if is_asked and other != field:
            raise InvalidRequest(f"{other} can't be given with {field}", param=other)
    if not are_texts:
        raise InvalidRequest(f"{field} is for texts, not for token ids or chats", param=field)
    if allows_errors:
        raise InvalidRequest(f"{field} can't be given with on_error", param=field)
    if chunking is not Chunking.WINDOWS:
        check_gives_token_rows(model, field)
    return chunking


def check_gives_token_rows(model: ServedModel, field: str) -> None:
    """Raises UnsupportedTask for a model that has none, of which chunks could be made."""
    if OutputKind.TOKENS not in model.outputs:
        raise UnsupportedTask(f"{field} needs rows of single tokens, which this model does not give", param=field)


def read_chunk_size(fields: ChunkingFields) -> int:
    """The tokens of each chunk of a text; 0 = it has none of this kind. Raises InvalidRequest."""
    given = fields.late_chunking_params
    if given is UNSET or not is_given(given):
        return 0
    size = parse(_PARAMS_DECODER, given, LATE_CHUNKING_PARAMS).chunk_size
    if not 1 <= size <= _MAX_CHUNK_SIZE:
        place = f"{LATE_CHUNKING_PARAMS}.chunk_size"
        raise InvalidRequest(f"{place} must be from 1 to {_MAX_CHUNK_SIZE}", param=place)
    return size


def check_is_whole(fields: TruncationFields) -> None:
    """Raises InvalidRequest for a field that asks for texts to be cut, beside one whose texts are whole."""
    for field in ("truncate", TRUNCATION, "truncate_prompt_tokens", "max_tokens"):
        if getattr(fields, field) not in (None, False, "NONE", "false"):
            raise InvalidRequest(f"{field} can't be given with {LATE_CHUNKING_PARAMS}: texts are whole", param=field)


_MAX_CHARS_PER_TOKEN = 8  # of a literal prompt; more would leave no room for the text
_SIDES = (Purpose.QUERY, Purpose.DOCUMENT)
_PromptName = option("one of the model's own prompts", by="TEI", words=lambda model: sorted(model.prompts))
_SpecialTokens = option("whether texts get special tokens", by="TEI, vLLM", neutral=(True,))
_SkipSpecialTokens = passed_over(
    "whether special tokens are left out of the text", by="TEI, SGLang", changes_result=True
)


def _purpose_words(model: ServedModel) -> list[str]:
    """The words of a purpose where texts get a prompt."""
    by_purpose = (word for word, purpose in PURPOSES.items() if prompt_for(model, purpose) is not None)
    return list(dict.fromkeys([*model.prompts, *model.adapters, *by_purpose]))


def _side_words(model: ServedModel) -> list[str]:
    return [word for word, purpose in PURPOSES.items() if purpose in _SIDES]


def _max_prompt_chars(model: ServedModel) -> int:
    return _MAX_CHARS_PER_TOKEN * model.max_seqlen


class PromptNameField(Fields, kw_only=True):
    """Which of the model's own prompts goes before each text."""

    prompt_name: Annotated[str | None, _PromptName] = None


_InputType = option("what the texts are for", by="Cohere, Voyage", words=_purpose_words)


class InputTypeField(Fields, kw_only=True):
    """What the texts are for."""

    input_type: Annotated[str | None, _InputType] = None


class PromptFields(TruncationFields, kw_only=True):
    """How texts become tokens."""

    input_type: Annotated[str | None, _InputType] = None
    task: Annotated[str | None, option("what the texts are for", by="Jina", words=_purpose_words)] = None
    prompt_name: Annotated[str | None, _PromptName] = None
    prompt: Annotated[
        str | None,
        option(
            "a text before each text", by="Mixedbread", of_model=lambda model: {"maxLength": _max_prompt_chars(model)}
        ),
    ] = None


PROMPT_FIELDS = names_of(PromptFields)[len(names_of(TruncationFields)) :]


class SideFields(Fields, kw_only=True):
    """On which side of a search the texts are."""

    input_type: Annotated[str | None, option("the side of a search", by="Cohere, Voyage", words=_side_words)] = None
    task: Annotated[str | None, option("the side of a search", by="Jina", words=_side_words)] = None


class SpecialTokensField(Fields, kw_only=True):
    """Whether texts get special tokens."""

    add_special_tokens: Annotated[bool, _SpecialTokens] = True


class ChatSpecialTokensField(Fields, kw_only=True):
    """The same where the template writes them."""

    add_special_tokens: Annotated[bool, _SpecialTokens] = False


class SkipSpecialTokensField(Fields, kw_only=True):
    """Whether special tokens are left out of a text."""

    skip_special_tokens: Annotated[bool, _SkipSpecialTokens] = True


class KeepSpecialTokensField(Fields, kw_only=True):
    """The same where they are kept, if nothing is said."""

    skip_special_tokens: Annotated[bool, _SkipSpecialTokens] = False


class Prompts(TypedDict, total=False):
    """The way in which a request for rows says what goes before its texts, and which adapter computes them."""

    prompt: str
    adapter: int


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
        field, prompt = "prompt", fields.prompt
        if len(prompt) > _max_prompt_chars(model):
            raise InvalidRequest(f"prompt has more than {_max_prompt_chars(model)} characters", param="prompt")
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
    purpose = PURPOSES.get(word) if word else None
    is_apart = model.prompts.keys().isdisjoint(model.adapters)  # no prompt's name says which adapter it is for
    if fields.prompt_name is not None and not is_apart:
        field, word, purpose = "prompt_name", fields.prompt_name, None
    if word is None:
        return adapter_named(model, None)
    if adapter := adapter_named(model, word):
        return adapter
    if purpose is None and is_apart and word in model.prompts:
        return adapter_named(model, None)
    if purpose is None:
        raise no_adapter(model, word, field=field)
    return adapter_for(model, purpose, field=field)


def read_is_query(fields: PromptFields, model: ServedModel, *, name: str | None = None) -> bool:
    """Whether the texts are queries, for models that treat these differently; else they are documents.

    Raises InvalidRequest.
    """
    field, word = _purpose_word(fields, model, name)
    purpose = Purpose.DOCUMENT if word is None else PURPOSES.get(word)
    if purpose not in _SIDES:
        raise InvalidRequest(f"{field} must be query or document", param=field)
    return purpose is Purpose.QUERY


def _purpose_word(fields: PromptFields, model: ServedModel, name: str | None) -> tuple[str, str | None]:
    """The field that says what the texts are for, and its word; ("", None) if none does."""
    if fields.input_type is not None or fields.task is not None:
        return _either(input_type=fields.input_type, task=fields.task)
    if name is None or ":" not in name or name in model.names:
        return "", None
    stem, _, word = name.rpartition(":")
    if word in PURPOSES or word in model.prompts or (stem in model.names and word != NEWEST):
        return "model", word
    return "", None  # a single model takes any name


def _for_word(word: str, model: ServedModel, field: str) -> str:
    """The prompt for a purpose, or the model's own of that name."""
    purpose = PURPOSES.get(word)
    if word in model.prompts and (model.prompts[word] or purpose is None):
        return model.prompts[word]
    if word in model.adapters:
        return model.default_prompt
    if purpose is None:
        known = ", ".join(sorted({*PURPOSES, *model.prompts, *model.adapters}))
        raise InvalidRequest(f"{field} must name one of {known}", param=field)
    prompt = prompt_for(model, purpose)
    if prompt is None:
        raise InvalidRequest(
            f"{field} is not one that this model has a prompt for; prompt_name takes one of {_names(model)}",
            param=field,
        )
    return prompt


def _named(name: str, model: ServedModel) -> str:
    if name not in model.prompts:
        raise InvalidRequest(f"prompt_name is not one of the model's prompts ({_names(model)})", param="prompt_name")
    return model.prompts[name]


def _names(model: ServedModel) -> str:
    return ", ".join(sorted(model.prompts)) or "none"
