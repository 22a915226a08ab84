"""Labels of texts and of tokens: Hugging Face's shapes, as InferenceClient and @huggingface/inference have them at
POST /, and Baseten's /predict_tokens, which labels tokens or the spans of transformers' pipeline.

https://huggingface.co/docs/inference-providers/tasks/index and https://docs.baseten.co/engines/bei/ner. Embeddings and
similarity have TEI's shapes at Hugging Face, see tei/.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from engine.model.tasks import Activation, Task
from server.dialects.answers import Answer
from server.dialects.fields.field import item_field, option, passed_over
from server.dialects.fields.request import (
    AggregationField,
    ModelField,
    RawScoresField,
    TopKField,
    read_aggregation,
    wrong_aggregation,
)
from server.dialects.fields.texts import TruncationFields, read_cut
from server.dialects.reading.inputs import TEXTS, read_single_texts, read_texts
from server.dialects.reading.json_body import NOT_GIVEN, FieldsReader, is_given
from server.dialects.route import Call, Stages
from server.dialects.row_answers import FLOATS, RAGGED, RAGGED_ONLY, as_list, headers, numbers_as_json, ragged_answer
from server.dialects.tei import predictions, prompt_for, tei_route, timing_headers
from server.requests.classify import (
    OUTSIDE,
    Aggregation,
    ClassifyRequest,
    ClassifyTokensRequest,
    ScoredTokens,
    Span,
    classify,
    classify_tokens,
    labels_of,
    spans,
)
from server.requests.errors import InvalidRequest
from server.requests.limits import in_slices
from server.requests.work import Embedded
from tokenizer_pool.tasks import Token
from wire.records import light_dataclass

_TEXTS = {"type": "array", "items": {"type": "string"}}
_LONELY_TEXTS = {"type": "array", "items": {**_TEXTS, "minItems": 1, "maxItems": 1}}
_FUNCTIONS = {
    "sigmoid": Activation.SIGMOID,
    "softmax": Activation.SOFTMAX,
    "none": Activation.IDENTITY,
}
_MAX_PARAMETERS_BYTES = 10_000
_Parameters = TypeVar("_Parameters", bound=msgspec.Struct)


class _TextParameters(TopKField, kw_only=True):
    function_to_apply: Annotated[str | None, option("what is made of the scores", by="Hugging Face")] = (
        None  # None = the model's own
    )


class _TokenParameters(AggregationField, kw_only=True):
    ignore_labels: Annotated[list[str] | None, passed_over("refused, but for O", by="Hugging Face")] = None
    stride: Annotated[int | None, passed_over("refused", by="Hugging Face")] = None


class TaskBody(ModelField, kw_only=True):
    """A text, or a list of texts, and what is wanted of them."""

    inputs: Annotated[msgspec.Raw, item_field("what is classified or labelled", TEXTS)]
    parameters: Annotated[
        msgspec.Raw, passed_over("the options of the task", schema={"type": "object"}, changes_result=True)
    ] = NOT_GIVEN


class PredictTokensBody(TruncationFields, ModelField, RawScoresField, AggregationField, kw_only=True):
    """The body of POST /predict_tokens."""

    inputs: Annotated[
        msgspec.Raw, item_field("what is labelled", {"anyOf": [{"type": "string"}, _TEXTS, _LONELY_TEXTS]})
    ]


_TEXT_PARAMETERS = FieldsReader(_TextParameters)
_TOKEN_PARAMETERS = FieldsReader(_TokenParameters)


@light_dataclass(frozen=True, slots=True, kw_only=True)
class _TextRequest(ClassifyRequest):
    top_k: int | None


@light_dataclass(frozen=True, slots=True, kw_only=True)
class _TokenRequest(ClassifyTokensRequest):
    aggregation: Aggregation


def _decode_texts(call: Call, fields: TaskBody) -> _TextRequest:
    parameters = _read(_TEXT_PARAMETERS, fields.parameters)
    model = call.choose(fields)
    given = read_texts(fields.inputs, "inputs", max_items=call.max_items)
    function, top_k = parameters.function_to_apply, parameters.top_k
    if function is not None and function not in _FUNCTIONS:
        raise InvalidRequest(
            f"parameters.function_to_apply must be one of {', '.join(_FUNCTIONS)}", param="parameters.function_to_apply"
        )
    if top_k is not None and top_k < 1:
        raise InvalidRequest("parameters.top_k must be at least 1", param="parameters.top_k")
    return _TextRequest(
        **call.common(model),
        **asdict(given),
        prompt=prompt_for(model),
        truncation=model.truncation,
        activation=None if function is None else _FUNCTIONS[function],
        top_k=top_k,
    )


def _decode_tokens(call: Call, fields: TaskBody) -> _TokenRequest:
    parameters = _read(_TOKEN_PARAMETERS, fields.parameters)
    model = call.choose(fields)
    given = read_texts(fields.inputs, "inputs", max_items=call.max_items)
    aggregation = read_aggregation(parameters, Aggregation.SIMPLE, place="parameters.")
    if parameters.ignore_labels not in (None, [OUTSIDE]):
        raise InvalidRequest(
            f'parameters.ignore_labels must be ["{OUTSIDE}"], or be left out', param="parameters.ignore_labels"
        )
    if parameters.stride is not None:
        raise InvalidRequest("parameters.stride is not supported; send shorter texts", param="parameters.stride")
    return _TokenRequest(**call.common(model), **asdict(given), truncation=model.truncation, aggregation=aggregation)


def _read(reader: FieldsReader[_Parameters], parameters: msgspec.Raw) -> _Parameters:
    raw = bytes(parameters) if is_given(parameters) else b"{}"
    if len(raw) > _MAX_PARAMETERS_BYTES:
        raise InvalidRequest(f"parameters has more than {_MAX_PARAMETERS_BYTES} bytes", param="parameters")
    return reader.read(raw, "parameters")


def _decode_predict_tokens(call: Call, fields: PredictTokensBody) -> _TokenRequest:
    model = call.choose(fields)
    given = read_single_texts(fields.inputs, "inputs", max_items=call.max_items)
    call.set_form(offers=RAGGED_ONLY)
    cut, aggregation = read_cut(fields, model), read_aggregation(fields, Aggregation.NONE)
    if aggregation is not Aggregation.NONE and (fields.raw_scores or call.form is not FLOATS):
        raise wrong_aggregation("must be none if raw scores or raw bytes are requested")
    return _TokenRequest(
        **call.common(model),
        items=given.items,
        **cut,
        raw_scores=bool(fields.raw_scores),
        field="inputs",
        is_single=given.is_single,
        aggregation=aggregation,
    )


async def _encode_texts(call: Call, request: _TextRequest, scored: Embedded) -> Answer:
    """A list of labels for each text, also for a single one."""
    labels = labels_of(request.model, scored.rows.shape[1])
    items = await predictions(scored.rows, labels, top_k=request.top_k)
    return Answer(200, headers(scored), as_list(items))


async def _encode_tokens(call: Call, request: _TokenRequest, labelled: ScoredTokens) -> Answer:
    items = await _lists(request, labelled, _entities)
    return Answer(200, headers(labelled.scored), items[0] if request.is_single else as_list(items))


async def _encode_predict_tokens(call: Call, request: _TokenRequest, labelled: ScoredTokens) -> Answer:
    timing = timing_headers(call.trace)
    if call.form.has_rows_alone:
        return await ragged_answer(labelled.scored, beside=timing)
    items = await _lists(request, labelled, _tokens if request.aggregation is Aggregation.NONE else _spans)
    return Answer(200, [*headers(labelled.scored), *timing], as_list(items))


@dataclass(frozen=True, slots=True)
class _Labelled:
    """One text with its tokens and their scores."""

    request: _TokenRequest
    text: str
    tokens: Sequence[Token]
    scores: NDArray[np.float32]
    labels: Sequence[str]

    def spans(self) -> Iterator[Span]:
        return spans(self.tokens, self.scores, self.labels, self.request.aggregation)


async def _lists(
    request: _TokenRequest, labelled: ScoredTokens, entries: Callable[[_Labelled], Iterator[bytes]]
) -> list[bytes]:
    """A list in JSON of the entries of each text."""
    rows, offsets = labelled.scored.rows, labelled.scored.offsets
    assert offsets is not None
    labels, items = labels_of(request.model, rows.shape[1]), []
    places = pairwise(offsets.tolist())
    each = zip(request.texts, labelled.tokens, places, strict=True)
    async for text, tokens, (start, stop) in in_slices(each):
        found = entries(_Labelled(request, text, tokens, rows[start:stop], labels))
        items.append(as_list([entry async for entry in in_slices(found)]))
    return items


class Entity(msgspec.Struct):
    """A span of the text. `entity` and `index` are of a token alone, `entity_group` is of joined ones."""

    score: float
    word: str
    start: int
    end: int
    entity_group: str | msgspec.UnsetType = msgspec.UNSET
    entity: str | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET  # of the token, special ones counted


def _entities(of: _Labelled) -> Iterator[bytes]:
    if of.request.aggregation is not Aggregation.NONE:
        for span in of.spans():
            entity = Entity(span.score, of.text[span.start : span.stop], span.start, span.stop, entity_group=span.label)
            yield msgspec.json.encode(entity)
        return
    for index, (token, row) in enumerate(zip(of.tokens, of.scores, strict=True)):
        best = int(row.argmax())
        if not token.is_special and of.labels[best] != OUTSIDE:
            start, stop = token.start or 0, token.stop or 0
            entity = Entity(float(row[best]), token.text, start, stop, entity=of.labels[best], index=index)
            yield msgspec.json.encode(entity)


class TokenEntry(msgspec.Struct):
    """One token, or one span."""

    token: str
    token_id: int  # 0 for a span
    start: int  # as `end` 0 for a special token, which is not in the text
    end: int
    results: dict[str, float]


def _tokens(of: _Labelled) -> Iterator[bytes]:
    """Baseten's entries of tokens, with every label, or with the best one."""
    names = [msgspec.json.encode(label) for label in of.labels]
    for token, row in zip(of.tokens, of.scores, strict=True):
        chosen = range(len(names)) if of.request.raw_scores else [int(row.argmax())]
        numbers = numbers_as_json(row[chosen])[1:-1].split(b",")
        results = b",".join(b"%b:%b" % (names[at], number) for at, number in zip(chosen, numbers, strict=True))
        text, places = msgspec.json.encode(token.text), (token.start or 0, token.stop or 0)
        yield b'{"token":%b,"token_id":%d,"start":%d,"end":%d,"results":{%b}}' % (
            text,
            token.token_id,
            *places,
            results,
        )


def _spans(of: _Labelled) -> Iterator[bytes]:
    """Baseten's entries of spans."""
    for span in of.spans():
        text = of.text[span.start : span.stop]
        yield msgspec.json.encode(TokenEntry(text, 0, span.start, span.stop, {span.label: span.score}))


ROUTES = (
    tei_route(
        path="/predict_tokens",
        stages=Stages(_decode_predict_tokens, classify_tokens, _encode_predict_tokens),
        summary="Label tokens, or spans of them, with Baseten's API",
        body=PredictTokensBody,
        example={"inputs": ["The ferry leaves at seven."]},
        answers=(list[list[TokenEntry]],),
        raw_answer=RAGGED,
    ),
)
_OF_TEXTS, _OF_TOKENS = (
    tei_route(
        path="/",
        stages=stages,
        summary="Classify texts or tokens in the shapes of Hugging Face's clients",
        body=TaskBody,
    )
    for stages in (
        Stages(_decode_texts, classify, _encode_texts),
        Stages(_decode_tokens, classify_tokens, _encode_tokens),
    )
)
# POST / chooses them, see invocations.py.
BY_TASK = {Task.CLASSIFY: _OF_TEXTS, Task.RERANK: _OF_TEXTS, Task.TOKEN_CLASSIFY: _OF_TOKENS}
