"""text-embeddings-inference's /predict: labels and scores of texts or of pairs, in the form that Infinity and Hugging
Face have too.

https://github.com/huggingface/text-embeddings-inference, router/src/http/types.rs (PredictRequest).
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from server.dialects.reading.inputs import read_texts_or_pairs
from server.dialects.reading.known_fields import FieldsReader
from server.dialects.reading.text_options import TruncationFields, read_cut
from server.dialects.route import Answer, Call, Route
from server.dialects.row_answers import ROWS, as_list, headers, rows_alone
from server.dialects.row_forms import numbers_as_json
from server.dialects.tei.shared import tei_error, timing_headers
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.models import ServedModel
from server.requests.time_slices import TimeSlice
from server.requests.work import Embedded

_SOME_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}, "contains": _SOME_TEXT, "minItems": 1, "maxItems": 2}
_INPUTS = {"anyOf": [{"type": "string"}, _TEXTS, {"type": "array", "items": _TEXTS}]}


class PredictBody(TruncationFields, kw_only=True):
    """The body of POST /predict."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_INPUTS)]
    raw_scores: bool | None = None  # None = false
    model: str | None = None  # ours


_BODY = FieldsReader(PredictBody)


def decode(call: Call, body: bytes) -> ClassifyRequest:
    """The request of a body. Raises RequestError, naming the field or index."""
    fields = _BODY.read(body)
    model = call.models.choose(fields.model)
    given = read_texts_or_pairs(fields.inputs, "inputs", max_items=call.max_items)
    call.set_form()
    return ClassifyRequest(
        **call.common(model),
        texts=given.texts,
        pair_texts=given.pair_texts,
        alone=given.alone,
        prompt=prompt_for(model),
        **read_cut(fields, model),
        raw_scores=bool(fields.raw_scores),
        is_bounded=True,
        field="inputs",
        is_single=given.is_single,
    )


def prompt_for(model: ServedModel) -> str:
    """The prompt before each text, or the instruction that goes into the template of a model that has one."""
    return model.default_prompt if model.instruction is None else model.instruction


async def encode(call: Call, request: ClassifyRequest, scored: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    timing = timing_headers(call.trace)
    if call.form.has_rows_alone:
        return await rows_alone(scored, call.form, beside=timing)
    items = await predictions(scored.rows, labels_of(request.model, scored.rows.shape[1]))
    content = items[0] if request.is_single else as_list(items)
    return Answer(200, [*headers(scored), *timing], content)


class Prediction(msgspec.Struct):
    """One label with its score, in TEI's and Infinity's form."""

    score: float
    label: str


async def predictions(scores: NDArray[np.float32], labels: Sequence[str], *, top_k: int | None = None) -> list[bytes]:
    """Writes for each row of float32 [items, labels] a list of objects with label and score, the highest first.

    `top_k` of them; None = all.
    """
    ends = [b',"label":%b}' % msgspec.json.encode(label) for label in labels]
    items, time_slice = [], TimeSlice()
    for row in scores:
        order = np.argsort(-row, kind="stable")[:top_k]
        numbers = numbers_as_json(row[order])[1:-1].split(b",")
        items.append(
            as_list([b'{"score":%b%b' % (number, ends[at]) for number, at in zip(numbers, order.tolist(), strict=True)])
        )
        await time_slice.end_if_over()
    return items


ROUTES = (
    Route(
        path="/predict",
        decode=decode,
        run=classify,
        encode=encode,
        error_shape=tei_error,
        summary="Classify texts or pairs with TEI's API",
        body=PredictBody,
        example={"inputs": "The ferry leaves at seven."},
        answers=(list[Prediction], list[list[Prediction]]),
        raw_answer=ROWS,
    ),
)
