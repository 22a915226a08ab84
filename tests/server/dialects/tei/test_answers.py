"""TEI's encoders: the very numbers in each form, in order, and other requests get their turn meanwhile."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from server.dialects.answers import Answer
from server.dialects.route import Call
from server.dialects.row_answers import FLOATS, RAW_FLOATS, RowForm
from server.requests.work import Embedded, EmbedRequest, RequestContext, TokenizeRequest, Trace
from tests.server.edge import new_call, route_of, served_model
from tests.server.loop_share import turns_during
from tokenizer_pool.tasks import Token

encode_embed, encode_embed_all, encode_similarity, encode_tokens = (
    route_of(path).stages.encode for path in ("/embed", "/embed_all", "/similarity", "/tokenize")
)


def some_rows(num_rows: int, width: int) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = np.random.default_rng(1).standard_normal((num_rows, width), np.float32)
    return rows


def embedded(rows: NDArray[np.float32], offsets: list[int] | None = None) -> Embedded:
    num_items = len(rows) if offsets is None else len(offsets) - 1
    where = None if offsets is None else np.array(offsets, np.int32)
    return Embedded(rows, 7, np.ones(num_items, np.uint8), where)


Encode = Callable[[Call, EmbedRequest, Embedded], Coroutine[Any, Any, Answer]]
REQUEST = EmbedRequest(model=served_model(), items=["a"], context=RequestContext())


def encoded(encode: Encode, given: Embedded, form: RowForm = FLOATS) -> Coroutine[Any, Any, Answer]:
    asked = new_call()
    asked.form = form
    return encode(asked, REQUEST, given)


def answer_of(encode: Encode, given: Embedded) -> Any:
    return json.loads(bytes(asyncio.run(encoded(encode, given)).body))


def tokens_in_json(tokens: list[list[Token]]) -> Coroutine[Any, Any, Answer]:
    return encode_tokens(
        new_call(), TokenizeRequest(model=served_model(), items=["a"] * len(tokens), context=RequestContext()), tokens
    )


@pytest.mark.parametrize("num_rows", [1, 16, 17, 50])
def test_rows_are_a_list_of_lists_however_many_there_are(num_rows: int) -> None:
    rows = some_rows(num_rows, 33)
    assert np.array_equal(np.array(answer_of(encode_embed, embedded(rows)), np.float32), rows)


def test_rows_cut_to_fewer_dimensions() -> None:
    rows = some_rows(20, 32)[:, :5]  # not contiguous

    assert np.array_equal(np.array(answer_of(encode_embed, embedded(rows)), np.float32), rows)
    raw = asyncio.run(encoded(encode_embed, embedded(rows), RAW_FLOATS)).body
    assert np.array_equal(np.frombuffer(raw, "<f4").reshape(20, 5), rows)


def test_token_rows_are_a_list_for_each_input() -> None:
    rows = some_rows(40, 3)
    answer = answer_of(encode_embed_all, embedded(rows, [0, 1, 20, 40]))

    assert [len(item) for item in answer] == [1, 19, 20]
    assert np.array_equal(np.concatenate([np.array(item, np.float32) for item in answer]), rows)


def test_similarities_are_cosines_with_the_first() -> None:
    rows = some_rows(5, 33)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    assert np.allclose(answer_of(encode_similarity, embedded(rows)), rows[1:] @ rows[0], atol=1e-6)


@pytest.mark.holds("TEI's routes")
def test_headers_are_whole_milliseconds() -> None:
    trace = Trace(num_characters=30, num_tokens=7, tokenize_seconds=0.0019, queue_seconds=1.5, compute_seconds=0.0204)
    trace.began -= 2.0

    asked = replace(new_call(), trace=trace)
    found = dict(asyncio.run(encode_embed(asked, REQUEST, embedded(some_rows(2, 3)))).headers)

    total = found[b"x-total-time"]
    assert 2000 <= int(total) < 62_000
    assert found == {
        b"content-type": b"application/json",
        b"x-embedline-truncated-inputs": b"2",
        b"x-compute-type": b"gpu+optimized",
        b"x-compute-time": total,
        b"x-compute-characters": b"30",
        b"x-compute-tokens": b"7",
        b"x-total-time": total,
        b"x-tokenization-time": b"1",
        b"x-queue-time": b"1500",
        b"x-inference-time": b"20",
    }


def test_headers_of_raw_rows() -> None:
    found = dict(asyncio.run(encoded(encode_embed, embedded(some_rows(2, 3)), RAW_FLOATS)).headers)

    assert found[b"content-type"] == b"application/octet-stream"
    assert found[b"x-embedline-shape"] == b"2,3"
    assert found[b"x-compute-type"] == b"gpu+optimized"


def test_tokens_have_teis_names() -> None:
    tokens = [
        [Token(101, "[CLS]", True, None, None), Token(7592, "hello", False, 0, 5)],
        [],
        [Token(index, "日", False, index, index + 1) for index in range(2500)],
    ]

    answer = json.loads(bytes(asyncio.run(tokens_in_json(tokens)).body))

    assert answer[:2] == [
        [
            {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
            {"id": 7592, "text": "hello", "special": False, "start": 0, "stop": 5},
        ],
        [],
    ]
    assert [token["id"] for token in answer[2]] == list(range(2500))
    assert answer[2][-1] == {"id": 2499, "text": "日", "special": False, "start": 2499, "stop": 2500}


def test_others_get_their_turn_during_a_long_answer() -> None:
    rows = some_rows(128, 1024)
    token = Token(5, "five", False, 0, 4)

    assert turns_during(encoded(encode_embed, embedded(rows[:1]))) == 0
    assert turns_during(encoded(encode_embed, embedded(rows))) >= 5
    assert turns_during(encoded(encode_embed_all, embedded(rows, [0, 128]))) >= 5
    assert turns_during(encoded(encode_embed_all, embedded(rows, list(range(0, 129, 2))))) >= 60
    assert turns_during(tokens_in_json([[token] * 50_000])) >= 40
