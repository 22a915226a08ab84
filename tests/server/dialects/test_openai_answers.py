"""OpenAI's encoder: the very numbers in each form, in order, and other requests get their turn meanwhile."""

import asyncio
import base64
import json
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from server.dialects.answers import Answer
from server.dialects.openai import encode
from server.dialects.row_answers import FLOATS, RAW_FLOATS, Encoding, RowForm
from server.requests.work import Embedded, EmbedRequest, RequestContext
from tests.server.edge import new_call, served_model
from tests.server.loop_share import turns_during

BASE64 = RowForm(Encoding.BASE64)
EDGES = [0.0, -0.0, 1.0, -1.5, 0.1, 1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38, 1 / 3, 16777217.0, 65535.0]


def embedded(rows: NDArray[np.float32], num_tokens: int = 7) -> Embedded:
    return Embedded(rows, num_tokens, np.zeros(len(rows), np.uint8))


def some_rows(num_rows: int, width: int) -> NDArray[np.float32]:
    """Numbers of every size and sign, none of them infinite."""
    bits = np.random.default_rng(1).integers(0, 2**32, (num_rows, width), dtype=np.uint32)
    rows = bits.view(np.float32)
    return np.where(np.isfinite(rows), rows, np.float32(1.25))


def encoded(rows: NDArray[np.float32], form: RowForm, model: str = "the-model") -> Coroutine[Any, Any, Answer]:
    asked = new_call()
    asked.form = form
    return encode(
        asked, EmbedRequest(model=served_model(name=model), items=["a"], context=RequestContext()), embedded(rows)
    )


def body_of(rows: NDArray[np.float32], form: RowForm, model: str = "the-model") -> bytes:
    return bytes(asyncio.run(encoded(rows, form, model)).body)


def answer_of(rows: NDArray[np.float32], form: RowForm, model: str = "the-model") -> Any:
    return json.loads(body_of(rows, form, model))


def decoded(item: Any) -> NDArray[np.float32]:
    embedding = item["embedding"]
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    return np.array(embedding, np.float32)


@pytest.mark.holds("OpenAI's route")
@pytest.mark.parametrize("form", [FLOATS, BASE64])
@pytest.mark.parametrize("rows", [np.array([EDGES], np.float32), some_rows(1, 1), some_rows(50, 33)])
def test_each_number_is_the_very_same(form: RowForm, rows: NDArray[np.float32]) -> None:
    answer = answer_of(rows, form)

    items = answer["data"]
    assert [item["index"] for item in items] == list(range(len(rows)))
    assert {item["object"] for item in items} == {"embedding"}
    # as bits, so that 0 and -0 differ
    assert np.array_equal(np.stack([decoded(item) for item in items]).view(np.uint32), rows.view(np.uint32))
    assert answer["object"] == "list"
    assert answer["model"] == "the-model"
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7, "truncated_inputs": 0}


@pytest.mark.parametrize("form", [FLOATS, BASE64, RAW_FLOATS])
def test_rows_cut_to_fewer_dimensions(form: RowForm) -> None:
    rows = some_rows(20, 32)[:, :5]  # not contiguous

    if form is RAW_FLOATS:
        body = body_of(rows, form)
        answered = np.frombuffer(body, "<f4").reshape(20, 5)
    else:
        answered = np.stack([decoded(item) for item in answer_of(rows, form)["data"]])

    assert np.array_equal(answered, rows)


def test_a_models_name_may_have_any_character() -> None:
    name = 'a "quoted"\\ naïve\n模型'
    assert answer_of(some_rows(1, 4), FLOATS, name)["model"] == name


@pytest.mark.parametrize("form", [FLOATS, BASE64])
def test_others_get_their_turn_during_a_long_answer(form: RowForm) -> None:
    assert turns_during(encoded(some_rows(1, 4), form)) == 0
    assert turns_during(encoded(some_rows(2048, 4), form)) >= 5
    assert turns_during(encoded(some_rows(128, 1024), form)) >= 5
