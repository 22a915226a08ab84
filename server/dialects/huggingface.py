"""Hugging Face's shapes of classification, as InferenceClient and @huggingface/inference have them at POST /.

https://huggingface.co/docs/inference-providers/tasks/index. Embeddings and similarity have TEI's shapes, see tei/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation, Task
from server.dialects.reading.inputs import TEXTS, read_texts
from server.dialects.reading.json_body import NOT_GIVEN, is_given
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.route import Answer, Call, Route
from server.dialects.row_answers import as_list, headers
from server.dialects.tei.predict import Prediction, predictions, prompt_for
from server.dialects.tei.shared import tei_error
from server.requests.classify import (
    OUTSIDE,
    Aggregation,
    ClassifyRequest,
    ClassifyTokensRequest,
    ScoredTokens,
    classify,
    classify_tokens,
    labels_of,
    spans,
)
from server.requests.errors import InvalidRequest
from server.requests.time_slices import TimeSlice
from server.requests.work import Embedded
from tokenizer_pool.tasks import Token

_FUNCTIONS = {
    "sigmoid": Activation.SIGMOID,
    "softmax": Activation.SOFTMAX,
    "none": Activation.IDENTITY,
}
_MAX_PARAMETERS_BYTES = 10_000
_Parameters = TypeVar("_Parameters", bound=msgspec.Struct)


class _TextParameters(msgspec.Struct):
    function_to_apply: str | None = None  # None = the model's own
    top_k: int | None = None  # so many labels of each text; None = all


class _TokenParameters(msgspec.Struct):
    aggregation_strategy: str | None = None  # None = simple
    ignore_labels: list[str] | None = None  # None = O
    stride: int | None = None


class TaskBody(msgspec.Struct):
    """A text, or a list of texts, and what is wanted of them."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=TEXTS)]
    parameters: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})] = NOT_GIVEN
    model: str | None = None


_BODY = FieldsReader(TaskBody)
_TEXT_PARAMETERS = FieldsReader(_TextParameters)
_TOKEN_PARAMETERS = FieldsReader(_TokenParameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextRequest(ClassifyRequest):
    top_k: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenRequest(ClassifyTokensRequest):
    aggregation: Aggregation


def decode_texts(call: Call, body: bytes) -> _TextRequest:
    """Decode a request for text classification. Raises RequestError, naming the field or index."""
    fields = _BODY.read(body)
    parameters = _read(_TEXT_PARAMETERS, fields.parameters, _TextParameters())
    model = call.models.choose(fields.model)
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
        texts=given.texts,
        prompt=prompt_for(model),
        truncation=model.truncation,
        activation=None if function is None else _FUNCTIONS[function],
        field="inputs",
        is_single=given.is_single,
        top_k=top_k,
    )


def decode_tokens(call: Call, body: bytes) -> _TokenRequest:
    """Decode a request for token classification. Raises RequestError, naming the field or index."""
    fields = _BODY.read(body)
    parameters = _read(_TOKEN_PARAMETERS, fields.parameters, _TokenParameters())
    model = call.models.choose(fields.model)
    given = read_texts(fields.inputs, "inputs", max_items=call.max_items)
    name = parameters.aggregation_strategy or Aggregation.SIMPLE
    if name not in list(Aggregation):
        raise InvalidRequest(
            f"parameters.aggregation_strategy must be one of {', '.join(Aggregation)}",
            param="parameters.aggregation_strategy",
        )
    if parameters.ignore_labels not in (None, [OUTSIDE]):
        raise InvalidRequest(
            f'parameters.ignore_labels must be ["{OUTSIDE}"], or be left out', param="parameters.ignore_labels"
        )
    if parameters.stride is not None:
        raise InvalidRequest("parameters.stride is not supported; send shorter texts", param="parameters.stride")
    return _TokenRequest(
        **call.common(model),
        texts=given.texts,
        truncation=model.truncation,
        field="inputs",
        is_single=given.is_single,
        aggregation=Aggregation(name),
    )


def _read(reader: FieldsReader[_Parameters], parameters: msgspec.Raw, usual: _Parameters) -> _Parameters:
    if not is_given(parameters):
        return usual
    raw = bytes(parameters)
    if len(raw) > _MAX_PARAMETERS_BYTES:
        raise InvalidRequest(f"parameters has more than {_MAX_PARAMETERS_BYTES} bytes", param="parameters")
    return reader.read(raw, "parameters")


async def encode_texts(call: Call, request: _TextRequest, scored: Embedded) -> Answer:
    """A list of labels for each text, also for a single one. Long work is done in slices."""
    labels = labels_of(request.model, scored.rows.shape[1])
    items = await predictions(scored.rows, labels, top_k=request.top_k)
    return Answer(200, headers(scored), as_list(items))


async def encode_tokens(call: Call, request: _TokenRequest, labelled: ScoredTokens) -> Answer:
    """A list of entities for each text, or the one of a single text. Long work is done in slices."""
    rows, offsets = labelled.scored.rows, labelled.scored.offsets
    assert offsets is not None
    labels, items, time_slice = labels_of(request.model, rows.shape[1]), [], TimeSlice()
    places = pairwise(offsets.tolist())
    for text, tokens, (start, stop) in zip(request.texts or (), labelled.tokens, places, strict=True):
        found = []
        for entity in _entities(text, tokens, rows[start:stop], labels, request.aggregation):
            found.append(msgspec.json.encode(entity))
            await time_slice.end_if_over()
        items.append(as_list(found))
    return Answer(200, headers(labelled.scored), items[0] if request.is_single else as_list(items))


class Entity(msgspec.Struct):
    """A span of the text. `entity` and `index` are of a token alone, `entity_group` is of joined ones."""

    score: float
    word: str
    start: int
    end: int
    entity_group: str | msgspec.UnsetType = msgspec.UNSET
    entity: str | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET  # of the token, special ones counted


def _entities(
    text: str, tokens: Sequence[Token], scores: NDArray[np.float32], labels: Sequence[str], aggregation: Aggregation
) -> Iterator[Entity]:
    if aggregation is not Aggregation.NONE:
        for span in spans(tokens, scores, labels, aggregation):
            yield Entity(span.score, text[span.start : span.stop], span.start, span.stop, entity_group=span.label)
        return
    for index, (token, row) in enumerate(zip(tokens, scores, strict=True)):
        best = int(row.argmax())
        if not token.is_special and labels[best] != OUTSIDE:
            start, stop = token.start or 0, token.stop or 0
            yield Entity(float(row[best]), token.text, start, stop, entity=labels[best], index=index)


def _route(decode: Any, run: Any, encode: Any, answers: tuple[Any, ...]) -> Route:
    return Route(
        path="/",
        decode=decode,
        run=run,
        encode=encode,
        error_shape=tei_error,
        summary="Classify texts or tokens in the shapes of Hugging Face's clients",
        body=TaskBody,
        example={"inputs": "The ferry leaves at seven."},
        answers=answers,
    )


_TEXTS = _route(decode_texts, classify, encode_texts, (list[list[Prediction]],))
_TOKENS = _route(decode_tokens, classify_tokens, encode_tokens, (list[Entity], list[list[Entity]]))
# POST / chooses them, see invocations.py.
BY_TASK = {Task.CLASSIFY: _TEXTS, Task.RERANK: _TEXTS, Task.TOKEN_CLASSIFY: _TOKENS}
