"""What texts of one request have in common is computed once, and every text has its own row and its own error."""

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batch_manager.messages import RequestRefusal, RequestRefused
from engine.types import OutputKind
from server.requests import work
from server.requests.errors import EngineFailed, InvalidRequest
from server.requests.repeated import LEAST_SHARED, packed, shared_prefixes
from server.requests.work import RequestContext, Trace
from server.settings.api_keys import ApiKey
from tests.server.edge import Edge, served_model
from tests.server.requests.embed_requests import a_request, embed
from tokenizer_pool.tasks import TokenizedTexts, offsets_of
from wire.parts import Part

FOUR = ["one", "three", "one", "ab"]
PREFIX = "a prefix that they share, "


@pytest.mark.holds("Equal texts and equal beginnings", "Every text gets its own row")
def test_equal_texts_are_computed_once_and_each_has_its_row() -> None:
    embedded, edge = embed(a_request(items=FOUR))
    (submission,) = edge.managers.submitted
    assert list(submission.seqlens) == [3, 5, 2]
    assert bytes(submission.token_ids) == np.array([ord(c) % 100 for c in "onethreeab"], np.int32).tobytes()
    assert embedded.rows[:, 0].tolist() == [3, 5, 3, 2]
    assert (embedded.num_tokens, len(embedded.truncated)) == (13, 4)


@pytest.mark.holds("Equal texts and equal beginnings", "Every text gets its own row")
def test_rows_of_tokens_and_sparse_rows_are_spread_too() -> None:
    numbers = np.arange(10 * 8, dtype=np.float32).reshape(10, 8)  # of the tokens of the three that differ
    embedded, _ = embed(a_request(items=FOUR, outputs=OutputKind.TOKENS), managers_token_rows=numbers)
    assert embedded.offsets is not None
    assert embedded.offsets.tolist() == [0, 3, 8, 11, 13]
    assert np.array_equal(embedded.rows, np.concatenate([numbers[:8], numbers[:3], numbers[8:]]))

    model = served_model(outputs=OutputKind.SPARSE)
    embedded, _ = embed(a_request(model=model, items=FOUR, outputs=OutputKind.SPARSE, normalize=False))
    assert embedded.rows.tolist() == [[0, 3], [1, 5], [0, 3], [2, 2]]


def test_sparse_rows_are_bounded_before_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    request = a_request(model=served_model(outputs=OutputKind.SPARSE), items=FOUR, outputs=OutputKind.SPARSE)
    monkeypatch.setattr(work, "MAX_SPARSE_ROW_BYTES", 4 * 8)
    embed(request)
    monkeypatch.setattr(work, "MAX_SPARSE_ROW_BYTES", 4 * 8 - 1)
    with pytest.raises(InvalidRequest):
        embed(request)


@pytest.mark.holds("Equal texts and equal beginnings", "A bad input fails alone")
def test_the_first_of_several_equal_texts_is_named() -> None:
    for index, param in ((0, "input[0]"), (1, "input[2]"), (-1, None)):
        with pytest.raises(EngineFailed) as failed:
            embed(a_request(items=["a", "a", "b"]), managers_error=RequestRefused(RequestRefusal.POISON, index))
        assert failed.value.param == param


def texts(*ids: list[int]) -> TokenizedTexts:
    seqlens = np.array([len(one) for one in ids])
    return TokenizedTexts(np.concatenate(ids).astype(np.int32), offsets_of(seqlens), np.zeros(len(ids), np.uint8))


@pytest.mark.holds("Equal texts and equal beginnings")
def test_texts_that_differ_in_a_part_are_not_equal() -> None:
    tokens = texts([1, 2], [1, 2], [1, 2], [1, 2], [1, 2])
    parts = {
        Part.TOKEN_TYPE_IDS: np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 0], np.int32).tobytes(),
        Part.MARKS: bytes([0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
        Part.ADAPTERS: np.array([0, 0, 0, 7, 0], np.int32).tobytes(),
    }
    found = packed(tokens, parts, shares_prefixes=False)
    assert found.places is not None
    assert found.places.tolist() == [0, 1, 2, 3, 0]
    assert (found.seqlens, found.num_tokens) == ([2] * 4, 8)
    for part in parts:
        assert bytes(found.parts[part]) == parts[part][: 4 * len(parts[part]) // 5]


@pytest.mark.holds("Equal texts and equal beginnings")
def test_prefixes_are_those_of_a_plain_reading() -> None:
    """Of ids, types, marks and adapters; not all of a sequence, and none that are short."""
    chance = np.random.default_rng(5)
    base = chance.integers(0, 9, 200)
    for _ in range(100):
        rows = []
        for _ in range(chance.integers(2, 20)):
            own = base[: chance.integers(1, 200)].copy()
            if chance.random() < 0.6:
                own[chance.integers(0, len(own)) :] = 10
            rows.append(own.tolist())
        tokens = texts(*rows)
        types = (chance.random(tokens.num_tokens) < 0.002).astype(np.int32)
        marks = (chance.random(tokens.num_tokens) < 0.002).astype(np.uint8)
        adapters = (chance.random(tokens.num_items) < 0.2).astype(np.int32)
        every = [
            list(zip(rows[at], types[start:], marks[start:], [adapters[at]] * len(rows[at]), strict=False))
            for at, start in enumerate(tokens.offsets[:-1])
        ]
        expected = [0]
        for before, one in pairwise(every):
            count = next((at for at, (a, b) in enumerate(zip(before, one, strict=False)) if a != b), len(before))
            count = min(count, len(one) - 1)
            expected.append(count if count >= LEAST_SHARED else 0)
        parts: dict[Part, NDArray[Any]] = {
            Part.TOKEN_TYPE_IDS: types,
            Part.MARKS: marks,
            Part.ADAPTERS: adapters,
        }
        found = shared_prefixes(tokens.token_ids, tokens.offsets, parts)
        is_worth = sum(expected) >= max(1, tokens.num_tokens / 16)
        assert (found is not None) == is_worth
        assert found is None or found.tolist() == expected


@pytest.mark.holds("Equal texts and equal beginnings")
def test_frontends_tell_of_prefixes_where_the_model_shares_them() -> None:
    items = [PREFIX + "one", PREFIX + "two", PREFIX + "one", "other"]
    for shares in (False, True):
        _, edge = embed(a_request(model=served_model(shares_prefixes=shares, max_seqlen=99), items=items))
        (submission,) = edge.managers.submitted
        assert list(submission.shared) == ([0, len(PREFIX), 0] if shares else [])


@pytest.mark.holds("Equal texts and equal beginnings", "Fair shares")
async def test_a_key_has_spent_what_it_sent_and_work_is_what_is_computed() -> None:
    edge = Edge(keys=[ApiKey("one", b"1", tokens_per_minute=1000)])
    edge.managers.gate = asyncio.Event()
    model = served_model(shares_prefixes=True, max_seqlen=99)
    request = a_request(
        model=model, items=[PREFIX + "one", PREFIX + "three", "one", "one"], context=RequestContext("one")
    )
    asking = asyncio.create_task(edge.pipeline.embed(request, trace := Trace()))
    await edge.managers.arrivals.get()
    sent = 2 * len(PREFIX) + 3 + 5 + 3 + 3
    allowance = edge.admission.allowance("one")
    assert allowance is not None
    assert allowance.remaining == 1000 - sent
    assert edge.page.admitted_tokens.sum() == sent - len(PREFIX) - 3
    edge.managers.gate.set()
    assert (await asking).num_tokens == trace.num_tokens == sum(trace.seqlens) == sent
    assert not edge.page.admitted_tokens.any()
