"""vLLM's /pooling: what the model computes for each text, or for each of its tokens, by the name of a task.

Raw rows of tokens have vLLM's layout, one item after the other, if the body asks for bytes, so that vLLM's clients can
read them. If only the `accept` header asks for them they have ours, with offsets, see row_answers.py.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
import pybase64

from engine.model.tasks import Activation, Task
from engine.types import ROWS_OF_TOKENS, OutputKind
from server.dialects.error_shapes import error_fields
from server.dialects.reading.chats import TextOrChatReader, read_items
from server.dialects.reading.inputs import SCHEMA
from server.dialects.reading.row_options import read_allows_errors, read_form
from server.dialects.reading.text_options import PromptFields, read_adapter, read_cut, read_prompt
from server.dialects.route import Answer, Call, Route
from server.dialects.row_answers import (
    all_row_bytes,
    as_bytes,
    as_json,
    as_list,
    headers,
    metadata_header,
    ragged_answer,
    rows_alone,
    rows_or_null,
)
from server.dialects.row_forms import RAGGED_ONLY, WITH_ROWS_ONLY, Encoding, RowForm
from server.dialects.vllm.shared import (
    CommonFields,
    UsageWithCompletion,
    end_of_list,
    start_of_list,
    vllm_error,
)
from server.requests.classify import ClassifyRequest, classify
from server.requests.embeddings import embed_any, embed_tokens
from server.requests.errors import InvalidRequest, UnsupportedTask
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.rows import activated
from server.requests.time_slices import TimeSlice
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
        """The number of texts, conversations or lists of ids."""
        return self.work.num_items


def decode(call: Call, body: bytes) -> _Request:
    """The request of a body. Raises RequestError, naming the field or index."""
    fields, chat = _BODY.read(body)
    model = call.models.choose(fields.model, with_prompt=True)
    outputs = _outputs(_BY_MODEL.get(model.task, "embed") if fields.task is None else fields.task, model)
    wanted = read_form(fields.encoding_format, embed_dtype=fields.embed_dtype, endianness=fields.endianness)
    call.set_form(wanted, offers=RAGGED_ONLY if outputs & ROWS_OF_TOKENS else WITH_ROWS_ONLY)
    allows_errors = _read_allows_errors(fields.on_error, call, outputs)
    common, cut, name = call.common(model), read_cut(fields, model), call.models.asked_name(fields.model)
    items, prompt = read_items(fields, chat, max_items=call.max_items, may_be_empty=allows_errors), ""
    if chat is None:
        prompt = read_prompt(PromptFields(), model, name=name, are_ids=items["token_ids"] is not None)
    if not outputs & _EMBEDDINGS:
        if chat is not None or outputs is not OutputKind.LOGITS:
            prompt = ""
        elif model.instruction is not None:
            prompt = model.instruction
        raw_scores = fields.use_activation is False
        scored = ClassifyRequest(**common, **cut, **items, outputs=outputs, prompt=prompt, raw_scores=raw_scores)
        return _Request(scored, wanted)
    adapter = read_adapter(PromptFields(), model, name=name)
    by_model = model.normalize if outputs is OutputKind.TOKENS else None  # vLLM scales rows of tokens too
    normalize = by_model if fields.use_activation is None else fields.use_activation
    work = EmbedRequest(
        **common,
        **cut,
        **items,
        outputs=outputs,
        prompt=prompt,
        adapter=adapter,
        normalize=normalize,
        allows_errors=allows_errors,
    )
    return _Request(work, wanted)


def _read_allows_errors(wanted: str | None, call: Call, outputs: OutputKind) -> bool:
    """Whether a wrong input fails alone. Raises InvalidRequest."""
    allows_errors = read_allows_errors(wanted, call)
    if allows_errors and outputs is not OutputKind.POOLED:
        raise InvalidRequest("on_error can be null only with the task embed", param="on_error")
    return allows_errors


def _outputs(task: str, model: ServedModel) -> OutputKind:
    """The kind of output that a task needs of the engine. Raises InvalidRequest and UnsupportedTask."""
    if task not in _TASKS and task not in _PLUGINS:
        raise InvalidRequest(f"task must be one of {', '.join(_TASKS)}", param="task")
    found = _TASKS.get(task, OutputKind(0)) & model.outputs
    if not found:
        supported = ", ".join(name for name, kind in _TASKS.items() if kind & model.outputs) or "none"
        raise UnsupportedTask(f"Unsupported task: {task!r}. Supported tasks: {supported}", param="task")
    return OutputKind.TOKENS if OutputKind.TOKENS in found else found


async def run(pipeline: Pipeline, request: _Request, trace: Trace) -> Embedded:
    """Compute rows of texts, or of their tokens with offsets."""
    work = request.work
    if work.outputs is OutputKind.POOLED and isinstance(work, EmbedRequest):
        return await embed_any(pipeline, work, trace)
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


async def write_pooled(call: Call, model: ServedModel, embedded: Embedded, *, wanted: RowForm) -> Answer:
    """Writes the rows; `wanted` is the form by the body alone. Long work is done in slices. Raises InvalidRequest."""
    form = call.form
    if form.has_rows_alone:
        return await _alone(call, model, embedded, wanted)
    values: AsyncIterator[bytes | bytearray]
    values = rows_or_null(embedded, form) if embedded.offsets is None else _of_tokens(embedded, form)
    items, time_slice, failed = list[bytes | bytearray](), TimeSlice(), embedded.failed or {}
    async for value in values:
        error = failed.get(len(items))
        beside = b"" if error is None else b',"error":' + msgspec.json.encode(error_fields(error))
        items.append(b'{"index":%d,"object":"pooling","data":%b%b}' % (len(items), bytes(value), beside))
        await time_slice.end_if_over()
    end = end_of_list(num_tokens=embedded.num_tokens, num_truncated=embedded.num_truncated)
    content = b"".join((start_of_list(call, model, b"pool-"), as_list(items), end))
    return Answer(200, headers(embedded, form), content)


async def _of_tokens(embedded: Embedded, form: RowForm) -> AsyncIterator[bytes | bytearray]:
    """A JSON value for the rows of each item: a list of rows, or the bytes of all of them."""
    assert embedded.offsets is not None
    for start, stop in pairwise(embedded.offsets.tolist()):
        rows = embedded.rows[start:stop]
        if form.encoding is Encoding.BASE64:
            yield b'"%b"' % pybase64.b64encode(as_bytes(await all_row_bytes(rows, form)))
        else:
            yield await as_json(rows, form)


async def _alone(call: Call, model: ServedModel, embedded: Embedded, wanted: RowForm) -> Answer:
    form = call.form
    if embedded.offsets is not None and wanted.encoding not in (Encoding.BYTES, Encoding.BYTES_ONLY):
        return await ragged_answer(embedded, form, beside=[])
    answer = await rows_alone(embedded, form)
    metadata = metadata_header(answer, embedded, form, model=model.name, request_id=call.trace.request_id)
    if embedded.offsets is not None and form.encoding is Encoding.BYTES and not metadata:
        raise InvalidRequest(
            "the metadata header would be too long for its readers; send fewer inputs, or ask for bytes_only",
            param="encoding_format",
        )
    answer.headers.extend(metadata)
    return answer


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
