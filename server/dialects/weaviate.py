"""The inference containers of Weaviate's modules: /vectors, /meta and /.well-known of text2vec-transformers, and the
answers of reranker-transformers.

https://github.com/weaviate/t2v-transformers-models and https://github.com/weaviate/reranker-transformers. Bodies of the
reranker come to rerank.py with those of other clients. They always have `property`: "" beside `documents`, or the one
document. The answer has each document with its score, in the order of the request.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from server.dialects.error_shapes import text_error
from server.dialects.reading.inputs import TEXT_LIST, Inputs, read_texts
from server.dialects.reading.json_body import NOT_GIVEN, is_given
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.reading.row_options import read_dimensions
from server.dialects.route import Answer, Call, PlainRoute, Route, forms_of, json_answer, not_ready_answer
from server.dialects.row_answers import ROWS, as_json, headers, rows_alone
from server.dialects.row_forms import FLOATS, numbers_as_json
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.models import ModelsState, ServedModel
from server.requests.pipeline import Pipeline
from server.requests.prompts import Purpose, adapter_for, adapter_named, prompt_for
from server.requests.rerank import Ranked
from server.requests.time_slices import TimeSlice
from server.requests.work import Embedded, EmbedRequest

_UNASKED = ("", "masked_mean")  # Weaviate always sends a pooling_strategy; this is its default
_PURPOSES = {"query": Purpose.QUERY, "passage": Purpose.DOCUMENT}
_TaskType = Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["", *_PURPOSES]})]


class Config(msgspec.Struct):
    """What Weaviate says of a class of objects."""

    pooling_strategy: str | None = None
    task_type: _TaskType | None = None
    dimensions: int | None = None


class VectorsBody(msgspec.Struct, kw_only=True):
    """The body of POST /vectors: one `text`, or a list of `texts`."""

    text: str | None = None
    texts: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=TEXT_LIST)] = NOT_GIVEN
    config: Config | None = None
    model: str | None = None  # ours


_BODY = FieldsReader(VectorsBody)
_BODIES = forms_of(VectorsBody, ["text"], ["texts"])


def decode(call: Call, body: bytes) -> EmbedRequest:
    """The request of a body. Raises RequestError, naming the field or index."""
    fields = _BODY.read(body)
    config = fields.config or Config()
    model = call.models.choose(fields.model)
    given = _read_texts(fields, max_items=call.max_items)
    _check_pooling(config.pooling_strategy, model)
    call.set_form(FLOATS)
    return EmbedRequest(
        **call.common(model),
        texts=given.texts,
        prompt=_prompt(config.task_type, model),
        adapter=_adapter(config.task_type, model),
        truncation=model.truncation,
        dimensions=read_dimensions(config.dimensions, model.dimensions, field="config.dimensions"),
        field="text" if given.is_single else "texts",
        is_single=given.is_single,
    )


def _read_texts(fields: VectorsBody, *, max_items: int) -> Inputs:
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
    return Inputs(texts=[fields.text], is_single=True)


def pooling_words(model: ServedModel) -> list[str]:
    """The words that `config.pooling_strategy` may be."""
    return [*_UNASKED, model.facts["info"]["pooling"]] if "info" in model.facts else [*_UNASKED]


def _check_pooling(strategy: str | None, model: ServedModel) -> None:
    """Raises InvalidRequest for a pooling that is not the model's."""
    if strategy is not None and strategy not in pooling_words(model):
        raise InvalidRequest(
            "config.pooling_strategy must be masked_mean, which stands for the model's own, or name it",
            param="config.pooling_strategy",
        )


def _prompt(task_type: str | None, model: ServedModel) -> str:
    """The prompt for a task type. Raises InvalidRequest."""
    if not task_type:
        return model.default_prompt
    if task_type not in _PURPOSES:
        raise InvalidRequest("config.task_type must be query or passage", param="config.task_type")
    return prompt_for(model, _PURPOSES[task_type]) or ""


def _adapter(task_type: str | None, model: ServedModel) -> int:
    """The adapter for a task type that `_prompt` knows. Raises InvalidRequest."""
    if not task_type:
        return adapter_named(model, None)
    return adapter_for(model, _PURPOSES[task_type], field="config.task_type")


async def encode(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """The row with its text, or all rows."""
    if call.form.has_rows_alone:
        return await rows_alone(embedded, call.form, request.ranges)
    width = embedded.rows.shape[1]
    rows, sizes = await as_json(embedded.rows), b'"dim":%d,"dims":%d' % (width, width)
    if not request.is_single:
        return Answer(200, headers(embedded), b"".join((b'{"vectors":', rows, b",", sizes, b"}")))
    assert request.texts is not None
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


def meta(state: ModelsState) -> Answer:
    """Describes what is served; the first model is the one that requests without a name get."""
    models = state.models.models if state.models else []
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


def live(state: ModelsState) -> Answer:
    """Answers as long as the process does."""
    return Answer(204, [], b"")


def ready(state: ModelsState) -> Answer:
    """Answers as /readyz does."""
    reason = state.why_not_ready()
    if reason is None:
        return Answer(204, [], b"")
    return not_ready_answer(reason)


ROUTES = (
    Route(
        path="/vectors",
        decode=decode,
        run=Pipeline.embed,
        encode=encode,
        error_shape=text_error,
        summary="Embed a text, or a list of texts, for Weaviate",
        body=_BODIES[0],
        more_bodies=_BODIES[1:],
        example={"text": "The ferry leaves at seven."},
        answers=(VectorAnswer, VectorsAnswer),
        raw_answer=ROWS,
    ),
)
PLAIN_ROUTES = (
    PlainRoute(
        path="/meta", answer=meta, error_shape=text_error, summary="What is served, as Weaviate asks", content=Meta
    ),
    PlainRoute(
        path="/.well-known/live",
        answer=live,
        error_shape=text_error,
        summary="Whether this process answers, as Weaviate asks",
        statuses=(204,),
    ),
    PlainRoute(
        path="/.well-known/ready",
        answer=ready,
        error_shape=text_error,
        summary="The same as /readyz, as Weaviate asks",
        statuses=(204, 503),
    ),
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
    time_slice, written = TimeSlice(), []
    for index in sorted(ranked.best_first()[:top_n].tolist()):
        document, score = msgspec.json.encode(documents[index]), numbers_as_json(ranked.scores[index : index + 1])[1:-1]
        written.append(b'{"document":%b,"score":%b}' % (document, score))
        await time_slice.end_if_over()
    return b'{"query":%b,"scores":[%b],"property":null,"score":null}' % (msgspec.json.encode(query), b",".join(written))


def weaviate_property_answer(query: str, document: str, ranked: Ranked) -> bytes:
    """The answer about the one document."""
    texts = msgspec.json.encode(query), msgspec.json.encode(document)
    return b'{"query":%b,"scores":null,"property":%b,"score":%b}' % (*texts, numbers_as_json(ranked.scores)[1:-1])
