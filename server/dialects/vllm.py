"""vLLM's own routes, which SGLang's clients know too: /score, /pooling, /tokenize, /detokenize, /version and /ping.

https://docs.vllm.ai/en/latest/models/pooling_models.html. /pooling computes for each text, or for each of its tokens,
what the name of a task says. Raw rows of tokens have vLLM's layout, one item after the other, if the body asks for
bytes, so that vLLM's clients can read them. If only the `accept` header asks for them they have ours, with offsets, see
row_answers.py.
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import pairwise
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
import pybase64
from msgspec.structs import asdict

from embedline import __version__
from engine.model.tasks import Activation, Task
from engine.types import ROWS_OF_TOKENS, OutputKind
from server.dialects.answers import Answer, error_fields, json_answer, not_ready_answer, openai_error
from server.dialects.fields.field import item_field, option, passed_over
from server.dialects.fields.request import InstructionField, ModelField, VllmRequestFields, read_instruction
from server.dialects.fields.rows import (
    ENCODING_FORMAT,
    ActivationField,
    FormFields,
    OnErrorField,
    read_allows_errors,
    read_form,
    wrong_on_error,
)
from server.dialects.fields.texts import (
    KeepSpecialTokensField,
    PairLengthFields,
    PromptFields,
    SpecialTokensField,
    TruncationFields,
    read_adapter,
    read_cut,
    read_pair_lengths,
    read_prompt,
)
from server.dialects.reading.inputs import (
    ID_LISTS,
    SCHEMA,
    TEXTS,
    Inputs,
    TextOrChatReader,
    read_chats,
    read_ids,
    read_items,
    read_texts,
)
from server.dialects.reading.json_body import NOT_GIVEN, is_given
from server.dialects.route import NOT_READY, Call, Response, Route, Stages
from server.dialects.row_answers import (
    BYTES,
    RAGGED_ONLY,
    ROWS,
    WITH_ROWS_ONLY,
    Encoding,
    RowForm,
    Usage,
    all_row_bytes,
    as_bytes,
    as_json,
    as_list,
    headers,
    metadata_header,
    numbers_as_json,
    ragged_answer,
    rows_alone,
    rows_or_null,
)
from server.requests.classify import ClassifyRequest, classify
from server.requests.embeddings import embed_any
from server.requests.errors import ERRORS, InvalidRequest, RequestError, UnsupportedTask
from server.requests.limits import in_slices
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.rerank import Ranked, RerankRequest, rank
from server.requests.work import DecodeRequest, Embedded, EmbedRequest, TokenizeRequest, Trace, activated
from tokenizer_pool.tasks import Chat, Token
from wire.records import light_dataclass

_ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class UsageWithCompletion(Usage):
    """Usage as vLLM has it."""

    completion_tokens: int


def vllm_error(error: RequestError) -> Answer:
    """An error in vLLM's shape: OpenAI's with other types, and the status as `code`."""
    status = ERRORS[type(error)].status
    return openai_error(error, type=_ERROR_TYPES.get(status) or HTTPStatus(status).phrase, code=status)


def list_answer(
    call: Call, model: ServedModel, embedded: Embedded, items: Sequence[bytes], *, prefix: str, kind: bytes = b"list"
) -> Answer:
    """The items, and what stands around them in vLLM's answers. `prefix` begins the id."""
    request_id, name = msgspec.json.encode(prefix + call.trace.request_id), msgspec.json.encode(model.name)
    num_tokens = embedded.num_tokens
    usage = num_tokens, num_tokens, embedded.num_truncated
    parts = (
        b'{"id":%b,"object":"%b","created":%d,"model":%b,"data":' % (request_id, kind, time.time(), name),
        as_list(items),
        b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"truncated_inputs":%d}}' % usage,
    )
    return Answer(200, headers(embedded, call.form), b"".join(parts))


# POST /score: one query goes with every document, or each of several with a document of its own.

_PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
_Side = Annotated[msgspec.Raw, item_field("one side of the pairs", TEXTS)]


class ScoreBody(TruncationFields, PairLengthFields, VllmRequestFields, ActivationField, InstructionField, kw_only=True):
    """The body of POST /score: queries with documents or items, data_1 with data_2, or text_1 with text_2."""

    queries: _Side = NOT_GIVEN
    documents: _Side = NOT_GIVEN
    items: _Side = NOT_GIVEN
    data_1: _Side = NOT_GIVEN
    data_2: _Side = NOT_GIVEN
    text_1: _Side = NOT_GIVEN
    text_2: _Side = NOT_GIVEN


def _decode_score(call: Call, fields: ScoreBody) -> RerankRequest:
    model = call.choose(fields)
    first, second = _pair(fields)
    queries, documents = (
        read_texts(getattr(fields, name), name, max_items=call.max_items).items for name in (first, second)
    )
    if len(queries) not in (1, len(documents)):
        raise InvalidRequest(f"{first} must be one text, or as many as {second} has", param=first)
    call.set_form()
    instruction, instruction_field = read_instruction(fields)
    return RerankRequest(
        **call.common(model),
        queries=queries,
        documents=documents,
        raw_scores=fields.use_activation is False,
        instruction=instruction,
        instruction_field=instruction_field,
        **read_cut(fields, model),
        **read_pair_lengths(fields, model),
        first_field=first,
        field=second,
    )


def _pair(fields: ScoreBody) -> tuple[str, str]:
    """The names of the two fields that hold the texts. Raises InvalidRequest."""
    given = {name for pair in _PAIRS for name in pair if is_given(getattr(fields, name))}
    for pair in _PAIRS:
        if given == set(pair):
            return pair
    names = ", or ".join(f"{first} and {second}" for first, second in _PAIRS)
    wrong = next((pair[1] for pair in _PAIRS if pair[0] in given), "queries") if len(given) < 2 else min(given)
    raise InvalidRequest(f"the body must have {names}, and nothing of another pair", param=wrong)


async def _encode_score(call: Call, request: RerankRequest, ranked: Ranked) -> Answer:
    """Scores are in the request's order."""
    scores = Embedded(ranked.scores[:, None], ranked.num_tokens, ranked.truncated)
    if call.form.has_rows_alone:
        return await rows_alone(scores, call.form)
    numbers = enumerate(numbers_as_json(ranked.scores)[1:-1].split(b","))
    items = [b'{"index":%d,"object":"score","score":%b}' % numbered async for numbered in in_slices(numbers)]
    return list_answer(call, request.model, scores, items, prefix="score-")


class _Score(msgspec.Struct):
    index: int
    object: Literal["score"]
    score: float


class ScoresAnswer(msgspec.Struct):
    """The answer of POST /score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[_Score]
    usage: UsageWithCompletion


# POST /pooling.

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


class PoolingBody(
    TruncationFields, VllmRequestFields, SpecialTokensField, ActivationField, FormFields, OnErrorField, kw_only=True
):
    """The body of POST /pooling."""

    input: Annotated[msgspec.Raw, item_field("what is computed", SCHEMA)]
    task: Annotated[_TaskName | None, option("what is computed of each text", by="vLLM")] = (
        None  # None = what the model is for
    )


_POOLING = TextOrChatReader(PoolingBody, field="input")


@dataclass(frozen=True, slots=True)
class _PoolingRequest:
    work: EmbedRequest | ClassifyRequest
    wanted: RowForm  # by the body, whatever the headers accept

    @property
    def num_items(self) -> int:
        """The number of texts, conversations or lists of ids."""
        return self.work.num_items


def _decode_pooling(call: Call, body: bytes) -> _PoolingRequest:
    fields, chat = _POOLING.read(body)
    model = call.choose(fields, with_prompt=True)
    outputs = _outputs(_BY_MODEL.get(model.task, "embed") if fields.task is None else fields.task, model)
    wanted = read_form(fields)
    call.set_form(wanted, offers=RAGGED_ONLY if outputs & ROWS_OF_TOKENS else WITH_ROWS_ONLY)
    allows_errors = read_allows_errors(fields, call)
    if allows_errors and outputs is not OutputKind.POOLED:
        raise wrong_on_error("can be null only with the task embed")
    cut, name = read_cut(fields, model), call.models.asked_name(fields.model)
    given, prompt = read_items(fields, chat, max_items=call.max_items, may_be_empty=allows_errors), ""
    asked = dict[str, Any](
        **call.common(model), **asdict(given), **cut, add_special_tokens=fields.add_special_tokens, outputs=outputs
    )
    if chat is None:
        prompt = read_prompt(PromptFields(), model, name=name, are_ids=given.has_ids)
    if not outputs & _EMBEDDINGS:
        if outputs is not OutputKind.LOGITS:
            prompt = ""
        elif chat is None and model.instruction is not None:
            prompt = model.instruction
        scored = ClassifyRequest(**asked, prompt=prompt, raw_scores=fields.use_activation is False)
        return _PoolingRequest(scored, wanted)
    by_model = model.normalize if outputs is OutputKind.TOKENS else None  # vLLM scales rows of tokens too
    work = EmbedRequest(
        **asked,
        prompt=prompt,
        adapter=read_adapter(PromptFields(), model, name=name),
        normalize=by_model if fields.use_activation is None else fields.use_activation,
        allows_errors=allows_errors,
    )
    return _PoolingRequest(work, wanted)


def _outputs(task: str, model: ServedModel) -> OutputKind:
    """The kind of output that a task needs of the engine. Raises InvalidRequest and UnsupportedTask."""
    if task not in _TASKS and task not in _PLUGINS:
        raise InvalidRequest(f"task must be one of {', '.join(_TASKS)}", param="task")
    found = _TASKS.get(task, OutputKind(0)) & model.outputs
    if not found:
        supported = ", ".join(name for name, kind in _TASKS.items() if kind & model.outputs) or "none"
        raise UnsupportedTask(f"Unsupported task: {task!r}. Supported tasks: {supported}", param="task")
    return OutputKind.TOKENS if OutputKind.TOKENS in found else found


async def _pool(pipeline: Pipeline, request: _PoolingRequest, trace: Trace) -> Embedded:
    """Compute rows of texts, or of their tokens with offsets."""
    work = request.work
    if isinstance(work, EmbedRequest):
        return await embed_any(pipeline, work, trace)
    if work.outputs is OutputKind.LOGITS:
        return await classify(pipeline, work, trace)
    computed = await pipeline.compute(work, trace)
    rows = computed.results[OutputKind.TOKEN_LOGITS]
    scores = rows.values if work.raw_scores else await activated(rows.values, Activation.SOFTMAX)
    return Embedded(scores, computed.num_tokens, computed.tokens.truncated, rows.offsets)


async def _encode_pooling(call: Call, request: _PoolingRequest, embedded: Embedded) -> Answer:
    form, model = call.form, request.work.model
    if form.has_rows_alone:
        return await _rows_alone(call, request, embedded)
    values: AsyncIterator[bytes | bytearray]
    values = rows_or_null(embedded, form) if embedded.offsets is None else _token_rows(embedded, form)
    items, failed = list[bytes](), embedded.failed or {}
    async for value in values:
        error = failed.get(len(items))
        beside = b"" if error is None else b',"error":' + msgspec.json.encode(error_fields(error))
        items.append(b'{"index":%d,"object":"pooling","data":%b%b}' % (len(items), bytes(value), beside))
    return list_answer(call, model, embedded, items, prefix="pool-")


async def _token_rows(embedded: Embedded, form: RowForm) -> AsyncIterator[bytes | bytearray]:
    """A JSON value for the rows of each item: a list of rows, or the bytes of all of them."""
    assert embedded.offsets is not None
    async for start, stop in in_slices(pairwise(embedded.offsets.tolist())):
        rows = embedded.rows[start:stop]
        if form.encoding is Encoding.BASE64:
            yield b'"%b"' % pybase64.b64encode(as_bytes(await all_row_bytes(rows, form)))
        else:
            yield await as_json(rows, form)


async def _rows_alone(call: Call, request: _PoolingRequest, embedded: Embedded) -> Answer:
    form = call.form
    if embedded.offsets is not None and request.wanted.encoding not in BYTES:
        return await ragged_answer(embedded, form, beside=[])
    answer = await rows_alone(embedded, form)
    name = request.work.model.name
    metadata = metadata_header(answer, embedded, form, model=name, request_id=call.trace.request_id)
    if embedded.offsets is not None and form.encoding is Encoding.BYTES and not metadata:
        raise InvalidRequest(
            "the metadata header would be too long for its readers; send fewer inputs, or ask for bytes_only",
            param=ENCODING_FORMAT,
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


# POST /tokenize and /detokenize: ids of a text or of a chat, and the text of ids.


class PromptBody(ModelField, SpecialTokensField, kw_only=True):
    """The body of POST /tokenize in vLLM's form."""

    prompt: Annotated[msgspec.Raw, item_field("what is tokenized", TEXTS)]  # a list is SGLang's
    return_token_strs: Annotated[
        bool | None, passed_over("whether tokens are shown as texts too", by="vLLM", changes_result=True)
    ] = None


class DetokenizeBody(ModelField, KeepSpecialTokensField, kw_only=True):
    """The body of POST /detokenize."""

    tokens: Annotated[
        msgspec.Raw, item_field("the tokens", ID_LISTS, may_have_empty=True)
    ]  # a list of lists is SGLang's


_TOKENIZE = TextOrChatReader(PromptBody, field="prompt")


@light_dataclass(frozen=True, slots=True, kw_only=True)
class _TokenizeRequest(TokenizeRequest):
    has_strings: bool


def _decode_tokenize(call: Call, body: bytes) -> _TokenizeRequest:
    fields, chat = _TOKENIZE.read(body)
    model = call.choose(fields, with_prompt=True)
    common, prompt = call.common(model), ""
    given: Inputs[Chat] | Inputs[str]
    if chat is not None:
        given = read_chats(chat, max_items=call.max_items, opens_answer=True)
    else:
        given = read_texts(fields.prompt, "prompt", max_items=call.max_items)
        prompt = read_prompt(PromptFields(), model, name=call.models.asked_name(fields.model))
    return _TokenizeRequest(
        **common,
        **asdict(given),
        prompt=prompt,
        add_special_tokens=fields.add_special_tokens,
        has_strings=bool(fields.return_token_strs),
    )


def _decode_detokenize(call: Call, fields: DetokenizeBody) -> DecodeRequest:
    model = call.choose(fields)
    given = read_ids(fields.tokens, "tokens", max_items=call.max_items)
    return DecodeRequest(**call.common(model), **asdict(given), skip_special_tokens=fields.skip_special_tokens)


async def _encode_ids(call: Call, request: _TokenizeRequest, tokens: list[list[Token]]) -> Answer:
    """One list of ids for one text, else a list of lists."""
    ids, strings = [], []
    async for each in in_slices(tokens):
        ids.append(msgspec.json.encode([token.token_id for token in each]))
        if request.has_strings:
            strings.append(msgspec.json.encode([token.text for token in each]))
    counts = [b"%d" % len(each) for each in tokens]
    write = itemgetter(0) if request.is_single else as_list
    content = b'{"count":%b,"max_model_len":%d,"tokens":%b,"token_strs":%b}' % (
        write(counts),
        request.model.max_seqlen,
        write(ids),
        write(strings) if strings else b"null",
    )
    return json_answer(content)


async def _encode_text(call: Call, request: DecodeRequest, texts: list[str]) -> Answer:
    """The text under vLLM's name and under SGLang's."""
    text = msgspec.json.encode(texts[0] if request.is_single else texts)
    return json_answer(b'{"prompt":%b,"text":%b}' % (text, text))


class TokenIds(msgspec.Struct):
    """The answer of POST /tokenize; lists of lists if several texts were given."""

    count: int | list[int]
    max_model_len: int
    tokens: list[Any]
    token_strs: list[Any] | None


class DetokenizedText(msgspec.Struct):
    """The answer of POST /detokenize: the text, twice."""

    prompt: str | list[str]
    text: str | list[str]


class Ping(msgspec.Struct):
    """The answer of POST /ping."""

    status: str


class VllmVersion(msgspec.Struct):
    """The answer of GET /version."""

    version: str


async def _version(call: Call) -> Answer:
    return json_answer(VllmVersion(__version__))


async def _ping(call: Call) -> Answer:
    """Answers as GET /ping does, which asks the same."""
    reason = call.state.why_not_ready()
    return json_answer(Ping("ok")) if reason is None else not_ready_answer(reason)


_route = partial(Route, error_shape=vllm_error)
TOKENIZE = _route(
    path="/tokenize",
    stages=Stages(_decode_tokenize, Pipeline.tokenize, _encode_ids),
    read=bytes,
    summary="Show the token ids of a text or of a chat with vLLM's API",
    body=PromptBody,
    answers=(TokenIds,),
    more_bodies=_TOKENIZE.chat_bodies,
)
ROUTES = (
    *(
        _route(
            path=path,
            stages=Stages(_decode_score, rank, _encode_score),
            summary="Score pairs of texts with vLLM's API",
            body=ScoreBody,
            one_of=_PAIRS,
            example={"queries": "When does the boat go?", "documents": ["The ferry leaves at seven."]},
            answers=(ScoresAnswer,),
            raw_answer=ROWS,
        )
        for path in ("/score", "/v1/score")
    ),
    _route(
        path="/pooling",
        stages=Stages(_decode_pooling, _pool, _encode_pooling),
        read=bytes,
        summary="Compute by the name of a task with vLLM's API",
        body=PoolingBody,
        answers=(PoolingAnswer,),
        raw_answer="rows one after the other, of float32 or of the type that is asked for",
        more_bodies=_POOLING.chat_bodies,
    ),
    _route(
        path="/detokenize",
        stages=Stages(_decode_detokenize, Pipeline.decode, _encode_text),
        summary="Make a text of token ids with vLLM's API",
        body=DetokenizeBody,
        example={"tokens": [101, 7592, 102]},
        answers=(DetokenizedText,),
    ),
)
PLAIN_ROUTES = (
    _route(
        method="GET",
        path="/version",
        answer=_version,
        summary="The version of this server, as vLLM tells its own",
        responses={200: Response("The answer", VllmVersion)},
    ),
    _route(
        path="/ping",
        answer=_ping,
        summary="The same as GET /ping",
        responses={200: Response("The answer", Ping), 503: NOT_READY},
    ),
)
