"""The inference containers of Weaviate's modules: /vectors, /meta and /.well-known of text2vec-transformers, and the
answers of reranker-transformers.

https://github.com/weaviate/t2v-transformers-models and https://github.com/weaviate/reranker-transformers. Bodies of the
reranker come to rerank.py with those of other clients. They always have `property`: "" beside `documents`, or the one
document. The answer has each document with its score, in the order of the request.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec.structs import asdict

from server.dialects.answers import Answer, json_answer, not_ready_answer, text_error
from server.dialects.fields.field import item_field, option, passed_over
from server.dialects.fields.request import ModelField
from server.dialects.fields.rows import DimensionsField, read_dimensions
from server.dialects.fields.texts import Prompts
from server.dialects.reading.inputs import TEXT_LIST, Inputs, read_texts
from server.dialects.reading.json_body import NOT_GIVEN, is_given
from server.dialects.route import NOT_READY, Call, Response, Route, Stages
from server.dialects.row_answers import FLOATS, ROWS, as_json, headers, numbers_as_json, rows_alone
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.limits import in_slices
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.prompts import Purpose, adapter_for, adapter_named, prompt_for
from server.requests.rerank import Ranked
from server.requests.work import Embedded, EmbedRequest

_UNASKED = ("", "masked_mean")  # Weaviate always sends a pooling_strategy; this is its default
_PURPOSES = {"query": Purpose.QUERY, "passage": Purpose.DOCUMENT}
_TaskType = Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["", *_PURPOSES]})]
_Purpose = option("what the texts are for", by="Vertex AI, Weaviate", hint="its name here is task")


def pooling_words(model: ServedModel) -> list[str]:
    """The words that `config.pooling_strategy` may be."""
    return [*_UNASKED, model.facts["info"]["pooling"]] if "info" in model.facts else [*_UNASKED]


class Config(DimensionsField, kw_only=True):
    """What Weaviate says of a class of objects."""

    pooling_strategy: Annotated[
        str | None, passed_over("how rows are made; it must be the model's", by="Weaviate", words=pooling_words)
    ] = None
    task_type: Annotated[_TaskType | None, _Purpose] = None


class VectorsBody(ModelField, kw_only=True):
    """The body of POST /vectors: one `text`, or a list of `texts`."""

    text: Annotated[str, item_field("what is embedded", is_list=False)] | None = None
    texts: Annotated[msgspec.Raw, item_field("what is embedded", TEXT_LIST)] = NOT_GIVEN
    config: Annotated[Config | None, passed_over("what Weaviate says of a class of objects", by="Weaviate")] = None


def _decode(call: Call, fields: VectorsBody) -> EmbedRequest:
    config = fields.config or Config()
    model = call.choose(fields)
    given = _read_texts(fields, max_items=call.max_items)
    if config.pooling_strategy is not None and config.pooling_strategy not in pooling_words(model):
        raise InvalidRequest(
            "config.pooling_strategy must be masked_mean, which stands for the model's own, or name it",
            param="config.pooling_strategy",
        )
    call.set_form(FLOATS)
    return EmbedRequest(
        **call.common(model),
        **asdict(given),
        **_read_task_type(config.task_type, model),
        truncation=model.truncation,
        dimensions=read_dimensions(config.dimensions, model.dimensions, field="config.dimensions"),
    )


def _read_texts(fields: VectorsBody, *, max_items: int) -> Inputs[str]:
    """The texts by either field. Raises InvalidRequest and EmptyInput."""
    is_list = is_given(fields.texts)
    if is_list is (fields.text is not None):
        raise InvalidRequest("either text or texts must be given", param="text")
    if is_list:
        given = read_texts(fields.texts, "texts", max_items=max_items)
        if given.is_single:
            raise InvalidRequest("texts must be a list of texts", param="texts")
        return given
    if not fields.text:
        raise EmptyInput("text must not be an empty string", param="text")
    return Inputs([fields.text], "text", is_single=True)


def _read_task_type(task_type: str | None, model: ServedModel) -> Prompts:
    """The prompt and the adapter for a task type. Raises InvalidRequest."""
    if not task_type:
        return {"prompt": model.default_prompt, "adapter": adapter_named(model, None)}
    if task_type not in _PURPOSES:
        raise InvalidRequest("config.task_type must be query or passage", param="config.task_type")
    purpose = _PURPOSES[task_type]
    adapter = adapter_for(model, purpose, field="config.task_type")
    return {"prompt": prompt_for(model, purpose) or "", "adapter": adapter}


async def _encode(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """The row with its text, or all rows."""
    if call.form.has_rows_alone:
        return await rows_alone(embedded, call.form, request.ranges)
    width = embedded.rows.shape[1]
    rows, sizes = await as_json(embedded.rows), b'"dim":%d,"dims":%d' % (width, width)
    if not request.is_single:
        return Answer(200, headers(embedded), b"".join((b'{"vectors":', rows, b",", sizes, b"}")))
    text = msgspec.json.encode(request.texts[0])
    parts = (b'{"text":', text, b',"vector":', rows[1:-1], b",", sizes, b"}")
    return Answer(200, headers(embedded), b"".join(parts))


class _Sizes(msgspec.Struct, kw_only=True):
    dim: int  # as the container calls it
    dims: int  # as Weaviate reads it


class VectorAnswer(_Sizes, kw_only=True):
    """The answer to `text`."""

    text: str
    vector: list[float]


class VectorsAnswer(_Sizes, kw_only=True):
    """The answer to `texts`."""

    vectors: list[list[float]]


class Meta(msgspec.Struct):
    """The answer of GET /meta."""

    model: str | None = None
    models: list[dict[str, Any]] = []


async def _meta(call: Call) -> Answer:
    """Describes what is served; the first model is the one that requests without a name get."""
    models = call.state.models.models if call.state.models else []
    told = [
        {
            "name": model.name,
            "dimensions": model.default_dimensions,
            "max_input_length": model.max_seqlen,
            "pooling": model.facts["info"]["pooling"],
            "task": model.task,
        }
        for model in models
    ]
    return json_answer(Meta(models[0].name if models else None, told))


async def _live(call: Call) -> Answer:
    return Answer(204, [], b"")


async def _ready(call: Call) -> Answer:
    """Answers as /readyz does."""
    reason = call.state.why_not_ready()
    return Answer(204, [], b"") if reason is None else not_ready_answer(reason)


ROUTES = (
    Route(
        path="/vectors",
        stages=Stages(_decode, Pipeline.embed, _encode),
        error_shape=text_error,
        summary="Embed a text, or a list of texts, for Weaviate",
        body=VectorsBody,
        one_of=(("text",), ("texts",)),
        answers=(VectorAnswer, VectorsAnswer),
        raw_answer=ROWS,
    ),
)
_LIVE = {204: Response("The answer")}
PLAIN_ROUTES = tuple(
    Route(method="GET", path=path, answer=answer, error_shape=text_error, summary=summary, responses=responses)
    for path, answer, summary, responses in (
        ("/meta", _meta, "What is served, as Weaviate asks", {200: Response("The answer", Meta)}),
        ("/.well-known/live", _live, "Whether this process answers, as Weaviate asks", _LIVE),
        ("/.well-known/ready", _ready, "The same as /readyz, as Weaviate asks", {**_LIVE, 503: NOT_READY}),
    )
)


class WeaviateScore(msgspec.Struct):
    """A document and its score."""

    document: str
    score: float


class WeaviateAnswer(msgspec.Struct):
    """The answer to `documents`, or with `property` to that."""

    query: str
    scores: list[WeaviateScore] | None
    property: str | None
    score: float | None


async def weaviate_answer(query: str, documents: Sequence[str], ranked: Ranked, top_n: int | None) -> bytes:
    """The best `top_n` of several documents. In slices, so that other requests run in between."""
    best = sorted(ranked.best_first()[:top_n].tolist())
    numbers = zip(best, numbers_as_json(ranked.scores[best])[1:-1].split(b","), strict=True)
    written = [
        b'{"document":%b,"score":%b}' % (msgspec.json.encode(documents[index]), score)
        async for index, score in in_slices(numbers)
    ]
    return b'{"query":%b,"scores":[%b],"property":null,"score":null}' % (msgspec.json.encode(query), b",".join(written))


def weaviate_property_answer(query: str, document: str, ranked: Ranked) -> bytes:
    """The answer about the one document."""
    texts = msgspec.json.encode(query), msgspec.json.encode(document)
    return b'{"query":%b,"scores":null,"property":%b,"score":%b}' % (*texts, numbers_as_json(ranked.scores)[1:-1])
