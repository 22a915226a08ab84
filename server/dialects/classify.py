"""POST /classify in vLLM's form, or in Infinity's form if the body has `raw_scores`; /v1/classify is always vLLM's.

The two answers can't be one: each item of `data` is an object in vLLM's, and a list in Infinity's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from server.dialects.answers import Answer
from server.dialects.fields.field import item_field
from server.dialects.fields.request import ClassifyFields, ModelField, UserField, read_infinitys_raw_scores
from server.dialects.fields.texts import SpecialTokensField, TruncationFields, read_cut
from server.dialects.reading.inputs import SCHEMA, TextOrChatReader, read_items
from server.dialects.route import Call, Route, Stages
from server.dialects.row_answers import ROWS, Usage, numbers_as_json, rows_alone
from server.dialects.tei import Prediction, predictions, prompt_for
from server.dialects.vllm import list_answer
from server.requests.classify import ClassifyRequest, classify, labels_of
from server.requests.limits import in_slices
from server.requests.work import Embedded
from wire.records import light_dataclass


class ClassifyBody(TruncationFields, ModelField, UserField, SpecialTokensField, ClassifyFields, kw_only=True):
    """The body of POST /classify."""

    input: Annotated[msgspec.Raw, item_field("what is classified", SCHEMA)]


_BODY = TextOrChatReader(ClassifyBody, field="input")


@light_dataclass(frozen=True, slots=True, kw_only=True)
class _Request(ClassifyRequest):
    has_infinitys_form: bool


def _decode(call: Call, body: bytes, *, may_be_infinitys: bool = True) -> _Request:
    fields, chat = _BODY.read(body)
    model = call.choose(fields)
    raw_scores, is_infinitys = read_infinitys_raw_scores(fields)
    call.set_form()
    cut = read_cut(fields, model)
    given = read_items(fields, chat, max_items=call.max_items)
    return _Request(
        **call.common(model),
        **asdict(given),
        add_special_tokens=fields.add_special_tokens,
        **cut,
        raw_scores=raw_scores,
        has_infinitys_form=is_infinitys and may_be_infinitys,
        prompt=prompt_for(model) if chat is None else "",
    )


async def _encode(call: Call, request: _Request, scored: Embedded) -> Answer:
    labels = labels_of(request.model, scored.rows.shape[1])
    if call.form.has_rows_alone:
        return await rows_alone(scored, call.form)
    kind, write = (b"classify", predictions) if request.has_infinitys_form else (b"list", classes)
    return list_answer(call, request.model, scored, await write(scored.rows, labels), prefix="classify-", kind=kind)


async def classes(scores: NDArray[np.float32], labels: Sequence[str]) -> list[bytes]:
    """vLLM's objects for each row: the best label, and all scores in the model's order."""
    names, best = [msgspec.json.encode(label) for label in labels], scores.argmax(axis=1).tolist()
    return [
        b'{"index":%d,"label":%b,"probs":%b,"num_classes":%d}' % (index, names[at], numbers_as_json(row), len(names))
        async for index, (row, at) in in_slices(enumerate(zip(scores, best, strict=True)))
    ]


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


_SUMMARY = "Classify texts with vLLM's API"
ROUTES = tuple(
    Route(
        path=path,
        stages=Stages(partial(_decode, may_be_infinitys=len(answers) > 1), classify, _encode),
        read=bytes,
        summary=summary,
        body=ClassifyBody,
        answers=answers,
        raw_answer=ROWS,
        more_bodies=_BODY.chat_bodies,
    )
    for path, summary, answers in (
        ("/classify", f"{_SUMMARY}, or with Infinity's if `raw_scores` is given", (ClassesAnswer, PredictionsAnswer)),
        ("/v1/classify", _SUMMARY, (ClassesAnswer,)),
    )
)
