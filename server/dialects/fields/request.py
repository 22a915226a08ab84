"""The request as a whole: its model, its place in the order of work, and which scores of texts and pairs it wants."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from server.dialects.fields.field import Fields, option, passed_over
from server.dialects.fields.rows import ActivationField, ScoreFormField, read_one
from server.dialects.reading.json_body import NOT_GIVEN, is_given, parse
from server.dialects.route import Call
from server.requests.classify import Aggregation
from server.requests.errors import InvalidRequest
from wire.vocabulary import RequestClass

_MAX_PRIORITY = 999
_Priority = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": _MAX_PRIORITY})]
_Order = passed_over("the order of work", by="Cohere, vLLM")


class ModelField(Fields, kw_only=True):
    """Which model answers, and which of its LoRA adapters."""

    model: Annotated[str | None, passed_over("the model that answers")] = None
    lora_path: Annotated[
        str | list[str | None] | None, option("a LoRA adapter of the model; in a list all are the same", by="SGLang")
    ] = None


class UserField(Fields, kw_only=True):
    """Whose request it is."""

    user: Annotated[str | None, passed_over("without effect")] = None


class PriorityField(Fields, kw_only=True):
    """Which requests wait for others."""

    priority: Annotated[_Priority | None, _Order] = None  # 0 is the highest


def read_class(fields: PriorityField, call: Call) -> RequestClass | None:
    """Every priority but the highest is bulk, unless the header says otherwise. Raises InvalidRequest."""
    if fields.priority is None:
        return call.options.request_class
    if not 0 <= fields.priority <= _MAX_PRIORITY:
        raise InvalidRequest(f"priority must be from 0 to {_MAX_PRIORITY}", param="priority")
    return call.options.request_class or (RequestClass.BULK if fields.priority else None)


class VllmRequestFields(ModelField, UserField, kw_only=True):
    """The fields of all requests of vLLM's clients, of which only the model has an effect."""

    priority: Annotated[int, _Order] = 0
    request_id: Annotated[str | None, passed_over("without effect: ids come by header", by="vLLM")] = None
    # There is no cache of prefixes here. It is checked as vLLM checks it, so that a client's mistake shows.
    cache_salt: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None, passed_over("without effect", by="vLLM")
    ] = None


RAW_SCORES = "raw_scores"
_Raw = option("whether scores are as the model computes them", by="TEI, Infinity", neutral=(False,))
_TopK = option("only so many of the best", by="Voyage, Mixedbread, Hugging Face", least=0)


class RawScoresField(Fields, kw_only=True):
    """Whether scores are as the model computes them."""

    raw_scores: Annotated[bool | None, _Raw] = None


class ClassifyFields(ActivationField, kw_only=True):
    """Whether scores are as the model computes them, by vLLM's name or by Infinity's, whose client always sends it."""

    raw_scores: Annotated[bool | UnsetType, _Raw] = UNSET


def read_infinitys_raw_scores(fields: ClassifyFields) -> tuple[bool, bool]:
    """Whether scores are wanted as the model gives them, and whether Infinity's field says so. Raises InvalidRequest
    if both are given."""
    is_infinitys = fields.raw_scores is not UNSET
    if is_infinitys and fields.use_activation is not None:
        raise InvalidRequest(
            "use_activation and raw_scores can't both be given; they are names of one option", param=RAW_SCORES
        )
    return fields.raw_scores is True or fields.use_activation is False, is_infinitys


class TopKField(Fields, kw_only=True):
    """How many of the best are wanted."""

    top_k: Annotated[int | None, _TopK] = None


_TOLD = "what a reranker is told to do"


class TemplateInstruction(Fields, kw_only=True, forbid_unknown_fields=True):
    """All that the template of a reranker takes beside its two texts."""

    instruction: Annotated[str | None, option(_TOLD, by="vLLM")] = None


_TEMPLATE_KWARGS: dict[str, Any] = {
    "type": "object",
    "properties": {"instruction": {"type": ["string", "null"]}},
    "additionalProperties": False,
}
_TEMPLATE_INSTRUCTION = msgspec.json.Decoder(TemplateInstruction)


class InstructionField(Fields, kw_only=True):
    """What a reranker is told to do."""

    instruction: Annotated[str | None, option(_TOLD, by="vLLM")] = None
    chat_template_kwargs: Annotated[
        msgspec.Raw,
        option(
            "what the model's template gets besides",
            by="vLLM",
            neutral=({},),
            schema=_TEMPLATE_KWARGS,
            inner=TemplateInstruction,
        ),
    ] = NOT_GIVEN


class _InstructionFields(InstructionField, kw_only=True):
    instruct: Annotated[str | None, option(_TOLD, by="SGLang")] = None


class RankFields(ScoreFormField, ActivationField, RawScoresField, _InstructionFields, kw_only=True):
    """How scores are computed and written, and how many of the best are wanted, by the names of all dialects."""

    top_k: Annotated[int | None, _TopK] = None
    top_n: Annotated[int | None, option("only so many of the best", by="Cohere, Jina, vLLM", least=0)] = None


def read_raw_scores(fields: RankFields) -> bool:
    """Whether scores are wanted as the model gives them. Raises InvalidRequest if the two names differ."""
    if fields.raw_scores is not None and fields.raw_scores is fields.use_activation:
        raise InvalidRequest("raw_scores is the opposite of use_activation; give one of them", param=RAW_SCORES)
    return bool(fields.raw_scores) or fields.use_activation is False


def read_top_n(fields: RankFields) -> int | None:
    """The number of results that are wanted, None = all. Raises InvalidRequest."""
    for name, number in (("top_n", fields.top_n), ("top_k", fields.top_k)):
        if number is not None and number < 0:
            raise InvalidRequest(f"{name} must not be negative", param=name)
    return read_one(top_n=fields.top_n or None, top_k=fields.top_k or None)


def read_instruction(fields: InstructionField) -> tuple[str | None, str]:
    """The instruction and the name of its field. Raises InvalidRequest if two differ."""
    given = {"instruction": fields.instruction, "instruct": getattr(fields, "instruct", None)}
    if is_given(fields.chat_template_kwargs):
        name = "chat_template_kwargs"
        given[name] = parse(_TEMPLATE_INSTRUCTION, fields.chat_template_kwargs, name).instruction
    name = next((name for name, value in given.items() if value is not None), "instruction")
    return read_one(**given), name


class AggregationField(Fields, kw_only=True):
    """How the labels of tokens become spans."""

    aggregation_strategy: Annotated[
        str | None,
        option("how labels of tokens become spans", by="Hugging Face", neutral=("none",), words=tuple(Aggregation)),
    ] = None


def read_aggregation(fields: AggregationField, usual: Aggregation, *, place: str = "") -> Aggregation:
    """How labels become spans. `place` stands before the field's name. Raises InvalidRequest."""
    try:
        return Aggregation(fields.aggregation_strategy or usual)
    except ValueError:
        raise wrong_aggregation(f"must be one of {', '.join(Aggregation)}", place=place) from None


def wrong_aggregation(problem: str, *, place: str = "") -> InvalidRequest:
    """The error about it."""
    return InvalidRequest(f"{place}aggregation_strategy {problem}", param=f"{place}aggregation_strategy")
