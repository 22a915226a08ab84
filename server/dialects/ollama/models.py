"""What Ollama's clients ask about models: /api/show, /api/tags, /api/ps and /api/version."""

import datetime
from typing import Any

import msgspec

from embedline import __version__
from server.dialects.reading.known_fields import BodyReader
from server.dialects.route import Answer, Call, PlainRoute, Route, json_answer
from server.dialects.writing.text_errors import text_error
from server.requests.models import ServedModel, ServerState
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace


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


class Version(msgspec.Struct):
    """The answer of GET /api/version."""

    version: str


_SHOW = BodyReader(ShowBody)


def decode_show(call: Call, body: bytes) -> ServedModel:
    """POST /api/show."""
    fields = _SHOW.read(body)
    return call.models.choose(fields.name if fields.model is None else fields.model, with_prompt=True)


async def show(pipeline: Pipeline, model: ServedModel, trace: Trace) -> ServedModel:
    """Nothing is computed."""
    return model


async def encode_show(call: Call, model: ServedModel, shown: ServedModel) -> Answer:
    """What is known of the model, under llama.cpp's names."""
    family = _family(model)
    model_info = {
        "general.architecture": family,
        f"{family}.context_length": model.max_seqlen,
        f"{family}.embedding_length": model.default_dimensions,
    }
    return json_answer(Shown(_loaded_at(model), _details(model), model_info, ["embedding"]))


def tags(state: ServerState) -> Answer:
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


def version(state: ServerState) -> Answer:
    """Ours: Ollama's own says nothing about this server."""
    return json_answer(Version(__version__))


def _details(model: ServedModel) -> Details:
    family = _family(model)
    return Details("", "safetensors", family, [family], "", model.facts["info"]["dtype"])


def _family(model: ServedModel) -> str:
    return model.facts["info"].get("architecture") or "unknown"


def _loaded_at(model: ServedModel) -> str:
    return datetime.datetime.fromtimestamp(model.facts["loaded_at"], datetime.UTC).isoformat()


ROUTES = (
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
        content=Version,
    ),
)
