"""Ollama's API: embeddings by /api/embed and the older /api/embeddings, and what its clients ask about models by
/api/show, /api/tags, /api/ps and /api/version.

https://docs.ollama.com/api
"""

import datetime
import re
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec.structs import asdict

from embedline import __version__
from server.dialects.answers import Answer, json_answer, text_error
from server.dialects.fields.field import Fields, item_field, passed_over
from server.dialects.fields.request import ModelField
from server.dialects.fields.rows import DimensionsOrAllField, OnErrorField, read_allows_errors, read_dimensions
from server.dialects.fields.texts import PromptFields, TruncateField, TruncationFields, read_cut, read_prompts
from server.dialects.reading.inputs import TEXTS, Inputs, read_texts
from server.dialects.reading.json_body import NOT_GIVEN, FieldsReader, given_members
from server.dialects.route import Call, Response, Route, Stages
from server.dialects.row_answers import FLOATS, ROWS, as_json, headers, rows_alone, rows_as_json
from server.requests import embeddings
from server.requests.errors import InvalidRequest
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.work import Embedded, EmbedRequest, Trace, no_rows

_NOTHING = re.compile(rb'(null|""|\[\s*\])')  # inputs with which clients only load a model


class Options(Fields):
    """Ollama's options; all others have no effect on embeddings."""

    num_ctx: Annotated[int | None, passed_over("the most tokens of each text", by="Ollama", least=1)] = None


class _CommonFields(ModelField, kw_only=True):
    keep_alive: Annotated[str | float | None, passed_over("without effect: models stay loaded", by="Ollama")] = None
    options: Annotated[Options | None, passed_over("options of the model", by="Ollama")] = None


class OllamaEmbedBody(_CommonFields, TruncateField, DimensionsOrAllField, OnErrorField, kw_only=True):
    """The body of POST /api/embed."""

    input: Annotated[msgspec.Raw, item_field("what is embedded", TEXTS, may_be_empty=True)] = NOT_GIVEN


class OllamaPromptBody(_CommonFields, kw_only=True):
    """The body of POST /api/embeddings, which embeds one text."""

    prompt: Annotated[str, passed_over("what is embedded")] = ""


# The names that texts have on the routes of this server.
_TEXT_NAMES = ("input", "inputs", "prompt", "text", "texts")
_EMBED = FieldsReader(OllamaEmbedBody)
_EMBEDDINGS = FieldsReader(OllamaPromptBody)


def _decode_embed(call: Call, body: bytes) -> EmbedRequest:
    fields = _EMBED.read(body)
    model = call.choose(fields, with_prompt=True)
    call.set_form(FLOATS)
    allows_errors = read_allows_errors(fields, call)
    given = Inputs[str]([], "input")
    if _NOTHING.fullmatch(bytes(fields.input)):
        _check_no_text(body, "input")
    else:
        given = read_texts(fields.input, "input", max_items=call.max_items, may_be_empty=allows_errors)
    return replace(
        _request(call, fields, given, model, truncate=fields.truncate),
        dimensions=read_dimensions(fields.dimensions or None, model.dimensions),
        normalize=True,
        allows_errors=allows_errors,
    )


def _decode_embeddings(call: Call, body: bytes) -> EmbedRequest:
    fields = _EMBEDDINGS.read(body)
    model = call.choose(fields, with_prompt=True)
    call.set_form(FLOATS)
    given = Inputs([fields.prompt] if fields.prompt else [], "prompt", is_single=True)
    if not fields.prompt:
        _check_no_text(body, "prompt")
    return _request(call, fields, given, model, truncate=None)


def _check_no_text(body: bytes, own: str) -> None:
    """Raises InvalidRequest where a body without a text has one by another route's name: it would get no row."""
    for name, value in given_members(body, _TEXT_NAMES).items():
        if _NOTHING.fullmatch(bytes(value)) is None:
            raise InvalidRequest(f"{name} is not supported on this route; its name here is {own}", param=name)


def _request(
    call: Call, fields: _CommonFields, given: Inputs[str], model: ServedModel, *, truncate: bool | None
) -> EmbedRequest:
    prompts = read_prompts(PromptFields(), model, name=call.models.asked_name(fields.model))
    num_ctx = fields.options.num_ctx if fields.options is not None else None
    if num_ctx is not None and num_ctx < 1:
        raise InvalidRequest("options.num_ctx must be at least 1", param="options.num_ctx")
    return EmbedRequest(
        **call.common(model),
        **asdict(given),
        **prompts,
        **read_cut(TruncationFields(truncate=truncate, max_tokens=num_ctx), model),
    )


async def _embed(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    """Rows; none for no text."""
    return await embeddings.embed_any(pipeline, request, trace) if request.items else no_rows(request)


async def _encode_embed(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """A list of rows. Durations are nanoseconds."""
    if call.form.has_rows_alone:
        return await rows_alone(embedded, call.form, request.ranges)
    out = bytearray(b'{"model":%b,"embeddings":' % msgspec.json.encode(request.model.name))
    out += await rows_as_json(embedded)
    out += b',"total_duration":%d,"load_duration":0,"prompt_eval_count":%d}' % (
        1e9 * call.trace.elapsed(),
        embedded.num_tokens,
    )
    return Answer(200, headers(embedded), out)


async def _encode_embeddings(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    if call.form.has_rows_alone:
        return await rows_alone(embedded, call.form, request.ranges)
    row = (await as_json(embedded.rows))[1:-1] or b"[]"
    return Answer(200, headers(embedded), b"".join((b'{"embedding":', row, b"}")))


class OllamaEmbedAnswer(msgspec.Struct):
    """The answer of POST /api/embed."""

    model: str
    embeddings: list[list[float] | None]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaPromptAnswer(msgspec.Struct):
    """The answer of POST /api/embeddings."""

    embedding: list[float]


class ShowBody(ModelField, kw_only=True):
    """The body of POST /api/show."""

    name: Annotated[str | None, passed_over("an older word for model", by="Ollama")] = None


class Details(msgspec.Struct):
    """What Ollama tells of a model's weights."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str  # "" = not known
    quantization_level: str


class Tag(msgspec.Struct):
    """One model of GET /api/tags."""

    name: str
    model: str
    modified_at: str
    size: int  # 0 = not known
    digest: str  # the model's revision, "" = not known
    details: Details


class Tags(msgspec.Struct):
    """The answer of GET /api/tags and /api/ps."""

    models: list[Tag]


class Shown(msgspec.Struct):
    """The answer of POST /api/show."""

    modified_at: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    template: str = ""
    modelfile: str = ""
    parameters: str = ""
    license: str = ""


class OllamaVersion(msgspec.Struct):
    """The answer of GET /api/version."""

    version: str


def _decode_show(call: Call, fields: ShowBody) -> ServedModel:
    return call.choose(fields, with_prompt=True, name=fields.name)


async def _show(pipeline: Pipeline, model: ServedModel, trace: Trace) -> ServedModel:
    return model


async def _encode_show(call: Call, model: ServedModel, shown: ServedModel) -> Answer:
    """Writes what is known of the model, under llama.cpp's names."""
    family = _family(model)
    model_info = {
        "general.architecture": family,
        f"{family}.context_length": model.max_seqlen,
        f"{family}.embedding_length": model.default_dimensions,
    }
    return json_answer(Shown(_loaded_at(model), _details(model), model_info, ["embedding"]))


async def _tags(call: Call) -> Answer:
    models = call.state.models.models if call.state.models else []
    return json_answer(Tags([_tag(model) for model in models]))


def _tag(model: ServedModel) -> Tag:
    revision = model.facts.get("revision") or ""
    return Tag(model.name, model.name, _loaded_at(model), size=0, digest=revision, details=_details(model))


async def _version(call: Call) -> Answer:
    """Answers with our version: Ollama's own says nothing about this server."""
    return json_answer(OllamaVersion(__version__))


def _details(model: ServedModel) -> Details:
    family = _family(model)
    return Details(model.parent or "", "safetensors", family, [family], "", model.facts["info"]["dtype"])


def _family(model: ServedModel) -> str:
    return model.facts["info"].get("architecture") or "unknown"


def _loaded_at(model: ServedModel) -> str:
    return datetime.datetime.fromtimestamp(model.facts["loaded_at"], datetime.UTC).isoformat()


_route = partial(Route, error_shape=text_error)
ROUTES = (
    _route(
        path="/api/embed",
        stages=Stages(_decode_embed, _embed, _encode_embed),
        read=bytes,
        summary="Embed texts with Ollama's API",
        body=OllamaEmbedBody,
        example={"model": "all-minilm", "input": ["The ferry leaves at seven."]},
        answers=(OllamaEmbedAnswer,),
        raw_answer=ROWS,
    ),
    _route(
        path="/api/embeddings",
        stages=Stages(_decode_embeddings, _embed, _encode_embeddings),
        read=bytes,
        summary="Embed one text with Ollama's older API",
        body=OllamaPromptBody,
        example={"model": "all-minilm", "prompt": "The ferry leaves at seven."},
        answers=(OllamaPromptAnswer,),
        raw_answer=ROWS,
    ),
    _route(
        path="/api/show",
        stages=Stages(_decode_show, _show, _encode_show),
        summary="Tell of a model with Ollama's API",
        body=ShowBody,
        example={"model": "all-minilm"},
        answers=(Shown,),
    ),
)
PLAIN_ROUTES = tuple(
    _route(method="GET", path=path, answer=answer, summary=summary, responses={200: Response("The answer", content)})
    for path, answer, summary, content in (
        ("/api/tags", _tags, "The models, as Ollama lists them", Tags),
        ("/api/ps", _tags, "The same: all are loaded", Tags),
        ("/api/version", _version, "The version of this server", OllamaVersion),
    )
)
