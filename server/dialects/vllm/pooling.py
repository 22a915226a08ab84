"""vLLM's /pooling: what the model computes for each text, or for each of its tokens, by the name of a task."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from engine.model.tasks import Activation, Task
from engine.types import ROWS_OF_TOKENS, OutputKind
from server.dialects.reading.forms import read_form
from server.dialects.reading.inputs import SCHEMA, read_inputs
from server.dialects.reading.on_error import read_on_error
from server.dialects.reading.prompts import PromptFields, read_adapter, read_prompt
from server.dialects.reading.truncation import read_max_tokens, read_truncation
from server.dialects.route import Answer, Call, Route
from server.dialects.vllm.chat import TextOrChatReader, work_of
from server.dialects.vllm.pooled import write_pooled
from server.dialects.vllm.shared import CommonFields, UsageWithCompletion, vllm_error
from server.dialects.writing.forms import RAGGED_ONLY, WITH_ROWS_ONLY, RowForm
from server.requests.activation import activated
from server.requests.classify import ClassifyRequest, classify
from server.requests.errors import InvalidRequest, UnsupportedTask
from server.requests.inputs.partial import embed
from server.requests.late_interaction import embed_tokens
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace
from server.requests.work import Embedded, EmbedRequest

_TASKS = {
    "embed": OutputKind.POOLED,
    "classify": OutputKind.LOGITS,
    "token_embed": OutputKind.TOKENS | OutputKind.MULTI_VECTOR,  # either
    "token_classify": OutputKind.TOKEN_LOGITS,
}
_TaskName = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(_TASKS)})]
_PLUGINS = ("plugin", "embed&token_classify")  # tasks that vLLM knows, and does with code of others
_BY_MODEL = {
    Task.CLASSIFY: "classify",
    Task.RERANK: "classify",
    Task.TOKEN_CLASSIFY: "token_classify",
    Task.LATE_INTERACTION: "token_embed",
}
_EMBEDDINGS = OutputKind.POOLED | OutputKind.TOKENS | OutputKind.MULTI_VECTOR


class PoolingBody(CommonFields, kw_only=True):
    """The body of POST /pooling."""

    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    add_special_tokens: bool = True
    task: _TaskName | None = None  # None = what the model is for
    use_activation: bool | None = None  # None = as the model does it
    encoding_format: str | None = None
    embed_dtype: str | None = None
    endianness: str | None = None
    on_error: str | None = None  # ours


_BODY = TextOrChatReader(PoolingBody, field="input")


@dataclass(frozen=True, slots=True)
class _Request:
    work: EmbedRequest | ClassifyRequest
    wanted: RowForm  # by the body, whatever the headers accept

    @property
    def num_items(self) -> int:
        """Texts, conversations or lists of ids."""
        return self.work.num_items


def decode(call: Call, body: bytes) -> _Request:
    """Raises RequestError, naming the field or index."""
    fields, chat = _BODY.read(body)
    model = call.models.choose(fields.model, with_prompt=True)
    outputs = _outputs(_BY_MODEL.get(model.task, "embed") if fields.task is None else fields.task, model)
    wanted = read_form(fields.encoding_format, embed_dtype=fields.embed_dtype, endianness=fields.endianness)
    call.set_form(wanted, offers=RAGGED_ONLY if outputs & ROWS_OF_TOKENS else WITH_ROWS_ONLY)
    allows_errors = _read_on_error(fields.on_error, call, outputs)
    own: dict[str, Any] = {
        "model": model,
        "outputs": outputs,
        "truncation": read_truncation(fields, model),
        "max_tokens": read_max_tokens(fields, model),
        "request_class": call.options.request_class,
        "deadline": call.options.deadline,
    }
    prompt = ""
    if chat is not None:
        own |= work_of(chat, max_items=call.max_items)
    else:
        given = read_inputs(fields.input, "input", max_items=call.max_items, may_be_empty=allows_errors)
        own |= {"texts": given.texts, "token_ids": given.token_ids, "is_single": given.is_single}
        own |= {"add_special_tokens": fields.add_special_tokens}
        prompt = read_prompt(PromptFields(), given, model, name=call.models.asked_name(fields.model))
    if not outputs & _EMBEDDINGS:
        return _Request(ClassifyRequest(raw_scores=fields.use_activation is False, **own), wanted)
    adapter = read_adapter(PromptFields(), model, name=call.models.asked_name(fields.model))
    by_model = model.normalize if outputs is OutputKind.TOKENS else None  # vLLM scales rows of tokens too
    normalize = by_model if fields.use_activation is None else fields.use_activation
    return _Request(
        EmbedRequest(prompt=prompt, adapter=adapter, normalize=normalize, allows_errors=allows_errors, **own), wanted
    )


def _read_on_error(wanted: str | None, call: Call, outputs: OutputKind) -> bool:
    """Raises InvalidRequest."""
    allows_errors = read_on_error(wanted, call)
    if allows_errors and outputs is not OutputKind.POOLED:
        raise InvalidRequest("on_error can be null only with the task embed", param="on_error")
    return allows_errors


def _outputs(task: str, model: ServedModel) -> OutputKind:
    """What a task needs of the engine. Raises InvalidRequest and UnsupportedTask."""
    if task not in _TASKS and task not in _PLUGINS:
        raise InvalidRequest(f"task must be one of {', '.join(_TASKS)}", param="task")
    found = _TASKS.get(task, OutputKind(0)) & model.outputs
    if not found:
        supported = ", ".join(name for name, kind in _TASKS.items() if kind & model.outputs) or "none"
        raise UnsupportedTask(f"Unsupported task: {task!r}. Supported tasks: {supported}", param="task")
    return OutputKind.TOKENS if OutputKind.TOKENS in found else found


async def run(pipeline: Pipeline, request: _Request, trace: Trace) -> Embedded:
    """Rows of texts, or of their tokens with offsets."""
    work = request.work
    if work.outputs is OutputKind.POOLED and isinstance(work, EmbedRequest):
        return await embed(pipeline, work, trace)
    if isinstance(work, EmbedRequest):
        return await embed_tokens(pipeline, work, trace)
    if work.outputs is OutputKind.LOGITS:
        return await classify(pipeline, work, trace)
    computed = await pipeline.compute(work, trace)
    rows = computed.results[OutputKind.TOKEN_LOGITS]
    scores = rows.values if work.raw_scores else await activated(rows.values, Activation.SOFTMAX)
    return Embedded(scores, computed.num_tokens, computed.tokens.truncated, rows.offsets)


async def encode(call: Call, request: _Request, embedded: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    return await write_pooled(call, request.work.model, embedded, wanted=request.wanted)


class _Item(msgspec.Struct):
    index: int
    object: Literal["pooling"]
    data: list[Any] | str | None  # numbers, or rows of them
    error: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET  # only with `on_error: "null"`


class PoolingAnswer(msgspec.Struct):
    """The answer of POST /pooling."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[_Item]
    usage: UsageWithCompletion


ROUTES = (
    Route(
        path="/pooling",
        decode=decode,
        run=run,
        encode=encode,
        error_shape=vllm_error,
        summary="Compute by the name of a task with vLLM's API",
        body=PoolingBody,
        example={"input": "The ferry leaves at seven."},
        answers=(PoolingAnswer,),
        raw_answer="rows one after the other, of float32 or of the type that is asked for",
        more_bodies=(_BODY.chat_body,),
    ),
)
