"""Ollama's API: embeddings by /api/embed and the older /api/embeddings, and what its clients ask about models by
/api/show, /api/tags, /api/ps and /api/version.

https://docs.ollama.com/api
"""

import datetime
import re
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from embedline import __version__
from server.dialects.error_shapes import text_error
from server.dialects.reading.inputs import TEXTS, Inputs, read_texts
from server.dialects.reading.json_body import NOT_GIVEN
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.reading.row_options import read_allows_errors, read_dimensions
from server.dialects.reading.text_options import PromptFields, TruncationFields, read_cut, read_prompts
from server.dialects.route import Answer, Call, PlainRoute, Route, json_answer
from server.dialects.row_answers import ROWS, as_json, as_list_of, headers, rows_alone, rows_or_null
from server.dialects.row_forms import FLOATS
from server.requests import embeddings
from server.requests.errors import InvalidRequest
from server.requests.models import ModelsState, ServedModel
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace
from server.requests.work import Embedded, EmbedRequest, no_rows

_NOTHING = re.compile(rb'(null|""|\[\s*\])')  # inputs with which clients only load a model


class Options(msgspec.Struct):
    """Ollama's options; all others have no effect on embeddings."""

    num_ctx: int | None = None  # the most tokens of each text


class OllamaEmbedBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/embed."""

    model: str | None = None
    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=TEXTS)] = NOT_GIVEN
    truncate: bool | None = None  # None = as --auto-truncate says
    dimensions: int | None = None  # 0 = all
    options: Options | None = None
    keep_alive: str | float | None = None  # without effect: models stay loaded
    on_error: str | None = None  # ours


class OllamaPromptBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/embeddings, which embeds one text."""

    model: str | None = None
    prompt: str = ""
    options: Options | None = None
    keep_alive: str | float | None = None  # without effect: models stay loaded


class _Texts(msgspec.Struct):
    """The names that texts have on the routes of this server."""

    input: msgspec.Raw | UnsetType = UNSET
    inputs: msgspec.Raw | UnsetType = UNSET
    prompt: msgspec.Raw | UnsetType = UNSET
    text: msgspec.Raw | UnsetType = UNSET
    texts: msgspec.Raw | UnsetType = UNSET


_EMBED = FieldsReader(OllamaEmbedBody)
_EMBEDDINGS = FieldsReader(OllamaPromptBody)
_TEXTS = msgspec.json.Decoder(_Texts)


def decode_embed(call: Call, body: bytes) -> EmbedRequest:
    """POST /api/embed. As all decoders here raises RequestError, naming the field or index."""
    fields = _EMBED.read(body)
    model = call.models.choose(fields.model, with_prompt=True)
    call.set_form(FLOATS)
    allows_errors = read_allows_errors(fields.on_error, call)
    given = Inputs(texts=[])
    if _NOTHING.fullmatch(bytes(fields.input)):
        _check_no_text(body, "input")
    else:
        given = read_texts(fields.input, "input", max_items=call.max_items, may_be_empty=allows_errors)
    dimensions = read_dimensions(fields.dimensions or None, model.dimensions)
    rest = {"dimensions": dimensions, "normalize": True, "allows_errors": allows_errors}
    return _request(call, fields, given, model, field="input", **rest)


def decode_embeddings(call: Call, body: bytes) -> EmbedRequest:
    """POST /api/embeddings."""
    fields = _EMBEDDINGS.read(body)
    model = call.models.choose(fields.model, with_prompt=True)
    call.set_form(FLOATS)
    given = Inputs(texts=[fields.prompt] if fields.prompt else [], is_single=True)
    if not fields.prompt:
        _check_no_text(body, "prompt")
    return _request(call, fields, given, model, field="prompt")


def _check_no_text(body: bytes, own: str) -> None:
    """Raises InvalidRequest where a body without a text has one by another route's name: it would get no row."""
    for name, value in msgspec.structs.asdict(_TEXTS.decode(body)).items():
        if value is not UNSET and _NOTHING.fullmatch(bytes(value)) is None:
            raise InvalidRequest(f"{name} is not supported on this route; its name here is {own}", param=name)


def _request(
    call: Call,
    fields: OllamaEmbedBody | OllamaPromptBody,
    given: Inputs,
    model: ServedModel,
    *,
    field: str,
    **rest: Any,
) -> EmbedRequest:
    truncate = fields.truncate if isinstance(fields, OllamaEmbedBody) else None
    return EmbedRequest(
        **call.common(model),
        texts=given.texts,
        **read_prompts(PromptFields(), model, name=call.models.asked_name(fields.model)),
        **read_cut(TruncationFields(truncate=truncate, max_tokens=_read_num_ctx(fields.options)), model),
        field=field,
        is_single=given.is_single,
        **rest,
    )


def _read_num_ctx(options: Options | None) -> int | None:
    """The most tokens of each text, None if nothing is said. Raises InvalidRequest."""
    wanted = options.num_ctx if options is not None else None
    if wanted is not None and wanted < 1:
        raise InvalidRequest("options.num_ctx must be at least 1", param="options.num_ctx")
    return wanted


async def embed(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    """Rows; none for no text."""
    return await embeddings.embed_any(pipeline, request, trace) if request.texts else no_rows(request)


async def encode_embed(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """A list of rows. Durations are nanoseconds."""
    if call.form.has_rows_alone:
        return await rows_alone(embedded, call.form, request.ranges)
    out = bytearray(b'{"model":%b,"embeddings":' % msgspec.json.encode(request.model.name))
    out += await as_list_of(rows_or_null(embedded, FLOATS)) if embedded.failed else await as_json(embedded.rows)
    out += b',"total_duration":%d,"load_duration":0,"prompt_eval_count":%d}' % (
        1e9 * call.trace.elapsed(),
        embedded.num_tokens,
    )
    return Answer(200, headers(embedded), out)


async def encode_embeddings(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """The one row."""
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


class ShowBody(msgspec.Struct, kw_only=True):
    """The body of POST /api/show."""

    model: str | None = None
    name: str | None = None  # an older word for `model`


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


_SHOW = FieldsReader(ShowBody)


def decode_show(call: Call, body: bytes) -> ServedModel:
    """POST /api/show."""
    fields = _SHOW.read(body)
    return call.models.choose(fields.name if fields.model is None else fields.model, with_prompt=True)


async def show(pipeline: Pipeline, model: ServedModel, trace: Trace) -> ServedModel:
    """Finds the model; nothing is computed."""
    return model


async def encode_show(call: Call, model: ServedModel, shown: ServedModel) -> Answer:
    """Writes what is known of the model, under llama.cpp's names."""
    family = _family(model)
    model_info = {
        "general.architecture": family,
        f"{family}.context_length": model.max_seqlen,
        f"{family}.embedding_length": model.default_dimensions,
    }
    return json_answer(Shown(_loaded_at(model), _details(model), model_info, ["embedding"]))


def tags(state: ModelsState) -> Answer:
    """The models that are loaded."""
    models = state.models.models if state.models else []
    return json_answer(
        Tags(
            [
                Tag(
                    name=model.name,
                    model=model.name,
                    modified_at=_loaded_at(model),
                    size=0,
                    digest=model.facts.get("revision") or "",
                    details=_details(model),
                )
                for model in models
            ]
        )
    )


def version(state: ModelsState) -> Answer:
    """Answers with our version: Ollama's own says nothing about this server."""
    return json_answer(OllamaVersion(__version__))


def _details(model: ServedModel) -> Details:
    family = _family(model)
    return Details("", "safetensors", family, [family], "", model.facts["info"]["dtype"])


def _family(model: ServedModel) -> str:
    return model.facts["info"].get("architecture") or "unknown"


def _loaded_at(model: ServedModel) -> str:
    return datetime.datetime.fromtimestamp(model.facts["loaded_at"], datetime.UTC).isoformat()


ROUTES = (
    Route(
        path="/api/embed",
        decode=decode_embed,
        run=embed,
        encode=encode_embed,
        error_shape=text_error,
        summary="Embed texts with Ollama's API",
        body=OllamaEmbedBody,
        example={"model": "all-minilm", "input": ["The ferry leaves at seven."]},
        answers=(OllamaEmbedAnswer,),
        raw_answer=ROWS,
    ),
    Route(
        path="/api/embeddings",
        decode=decode_embeddings,
        run=embed,
        encode=encode_embeddings,
        error_shape=text_error,
        summary="Embed one text with Ollama's older API",
        body=OllamaPromptBody,
        example={"model": "all-minilm", "prompt": "The ferry leaves at seven."},
        answers=(OllamaPromptAnswer,),
        raw_answer=ROWS,
    ),
    Route(
        path="/api/show",
        decode=decode_show,
        run=show,
        encode=encode_show,
        error_shape=text_error,
        summary="Tell of a model with Ollama's API",
        body=ShowBody,
        example={"model": "all-minilm"},
        answers=(Shown,),
    ),
)
PLAIN_ROUTES = (
    PlainRoute(
        path="/api/tags",
        answer=tags,
        error_shape=text_error,
        summary="The models, as Ollama lists them",
        content=Tags,
    ),
    PlainRoute(path="/api/ps", answer=tags, error_shape=text_error, summary="The same: all are loaded", content=Tags),
    PlainRoute(
        path="/api/version",
        answer=version,
        error_shape=text_error,
        summary="The version of this server",
        content=OllamaVersion,
    ),
)
