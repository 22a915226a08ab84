"""POST /classify in vLLM's form, or in Infinity's form if the body has `raw_scores`; /v1/classify is always vLLM's.

The two answers can't be one: each item of `data` is an object in vLLM's, and a list in Infinity's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from server.dialects.error_shapes import openai_error
from server.dialects.reading.chats import TextOrChatReader, read_items
from server.dialects.reading.inputs import SCHEMA
from server.dialects.reading.text_options import TruncationFields, read_cut
from server.dialects.route import Answer, Call, Route
from server.dialects.row_answers import ROWS, Usage, as_list, headers, rows_alone
from server.dialects.row_forms import numbers_as_json
from server.dialects.tei.predict import Prediction, predictions, prompt_for
from server.dialects.vllm.shared import end_of_list, start_of_list
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.errors import InvalidRequest
from server.requests.time_slices import TimeSlice
from server.requests.work import Embedded


class ClassifyBody(TruncationFields, kw_only=True):
    """The body of POST /classify."""

    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None
    use_activation: bool | None = None  # vLLM's; None = true
    raw_scores: bool | UnsetType = UNSET  # Infinity's, which always sends it
    add_special_tokens: bool = True  # vLLM's
    user: str | None = None


_BODY = TextOrChatReader(ClassifyBody, field="input")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(ClassifyRequest):
    has_infinitys_form: bool


def decode(call: Call, body: bytes) -> _Request:
    """POST /classify. Raises RequestError, naming the field or index."""
    return _decode(call, body, has_infinitys_form=None)


def decode_v1(call: Call, body: bytes) -> _Request:
    """POST /v1/classify."""
    return _decode(call, body, has_infinitys_form=False)


def _decode(call: Call, body: bytes, *, has_infinitys_form: bool | None) -> _Request:
    fields, chat = _BODY.read(body)
    model = call.models.choose(fields.model)
    has_raw_scores = fields.raw_scores is not UNSET
    if has_raw_scores and fields.use_activation is not None:
        raise InvalidRequest(
            "use_activation and raw_scores can't both be given; they are names of one option", param="raw_scores"
        )
    call.set_form()
    return _Request(
        **call.common(model),
        **read_cut(fields, model),
        raw_scores=fields.raw_scores is True or fields.use_activation is False,
        has_infinitys_form=has_raw_scores if has_infinitys_form is None else has_infinitys_form,
        **read_items(fields, chat, max_items=call.max_items),
        prompt=prompt_for(model) if chat is None else "",
    )


async def encode(call: Call, request: _Request, scored: Embedded) -> Answer:
    """Long work is done in slices, so that other requests run in between."""
    labels = labels_of(request.model, scored.rows.shape[1])
    if call.form.has_rows_alone:
        return await rows_alone(scored, call.form)
    if request.has_infinitys_form:
        kind, items = b"classify", await predictions(scored.rows, labels)
    else:
        kind, items = b"list", await classes(scored.rows, labels)
    start = start_of_list(call, request.model, b"classify-", kind=kind)
    end = end_of_list(num_tokens=scored.num_tokens, num_truncated=scored.num_truncated)
    return Answer(200, headers(scored), b"".join((start, as_list(items), end)))


async def classes(scores: NDArray[np.float32], labels: Sequence[str]) -> list[bytes]:
    """vLLM's objects for each row: the best label, and all scores in the model's order."""
    names = [msgspec.json.encode(label) for label in labels]
    best = scores.argmax(axis=1).tolist()
    items, time_slice = [], TimeSlice()
    for index, (row, at) in enumerate(zip(scores, best, strict=True)):
        items.append(
            b'{"index":%d,"label":%b,"probs":%b,"num_classes":%d}'
            % (index, names[at], numbers_as_json(row), len(names))
        )
        await time_slice.end_if_over()
    return items


class _Class(msgspec.Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class _Usage(Usage):
    completion_tokens: int


class _Answer(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    usage: _Usage


class ClassesAnswer(_Answer, kw_only=True):
    """The answer in vLLM's form."""

    object: Literal["list"]
    data: list[_Class]


class PredictionsAnswer(_Answer, kw_only=True):
    """The answer in Infinity's form."""

    object: Literal["classify"]
    data: list[list[Prediction]]


ROUTES = (
    Route(
        path="/classify",
        decode=decode,
        run=classify,
        encode=encode,
        error_shape=openai_error,
        summary="Classify texts with vLLM's API, or with Infinity's if `raw_scores` is given",
        body=ClassifyBody,
        example={"input": "The ferry leaves at seven."},
        answers=(ClassesAnswer, PredictionsAnswer),
        raw_answer=ROWS,
        more_bodies=(_BODY.chat_body,),
    ),
    Route(
        path="/v1/classify",
        decode=decode_v1,
        run=classify,
        encode=encode,
        error_shape=openai_error,
        summary="Classify texts with vLLM's API",
        body=ClassifyBody,
        example={"input": "The ferry leaves at seven."},
        answers=(ClassesAnswer,),
        raw_answer=ROWS,
        more_bodies=(_BODY.chat_body,),
    ),
)
