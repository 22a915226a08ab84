"""Tokens and rows of late interaction, against the plain way of doing it text by text."""

import asyncio
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.tasks import LateInteraction
from engine.types import OutputKind, Rows
from server.requests.late_interaction import counted, max_sim, rows_that_count, shaped
from server.requests.work import Computed, RequestContext, Work
from tests.server.edge import served_model
from tests.server.loop_share import turns_during
from tokenizer_pool.tasks import TokenizedTexts
from wire.parts import EXPANSION_TOKEN, Part

CLS, SEP, MASK, QUERY, DOCUMENT = 90, 91, 92, 93, 94
MAX_SEQLEN = 20


def flat(lists: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def tokenized(texts: list[list[int]], types: list[list[int]] | None = None) -> TokenizedTexts:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    parts = {} if types is None else {Part.TOKEN_TYPE_IDS: np.array(flat(types), np.int32)}
    return TokenizedTexts(np.array(flat(texts), np.int32), offsets, np.zeros(len(texts), np.uint8), parts)


def split(tokens: TokenizedTexts) -> list[list[int]]:
    return [each.tolist() for each in np.split(tokens.token_ids, tokens.offsets[1:-1])]


def shape(texts: TokenizedTexts, late: LateInteraction, **how: Any) -> TokenizedTexts:
    given = {"num_queries": 1, "max_seqlen": MAX_SEQLEN, **how}
    return asyncio.run(shaped(texts, late, **given))


def plain(text: list[int], late: LateInteraction, num_leading: int, *, is_query: bool) -> tuple[list[int], int]:
    """One text's ids, and how many of them are filled in."""
    marker = late.query_marker_id if is_query else late.document_marker_id
    if marker is not None:
        text = [*text[:num_leading], marker, *text[num_leading:]]
    fills = is_query and late.query_length is not None and late.expansion_id is not None
    num_missing = max(min(late.query_length or 0, MAX_SEQLEN) - len(text), 0) if fills else 0
    return text + [late.expansion_id or 0] * num_missing, num_missing


maybe_length = st.none() | st.integers(3, 30)
lates = st.builds(
    LateInteraction,
    query_marker_id=st.sampled_from([None, QUERY]),
    document_marker_id=st.sampled_from([None, DOCUMENT]),
    query_length=maybe_length,
    expansion_id=st.sampled_from([None, MASK]),
    attends_to_expansion=st.booleans(),
    document_length=maybe_length,
)
bodies = st.lists(st.integers(0, 80), max_size=MAX_SEQLEN - 2)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    late=lates,
    bodies=st.lists(bodies, min_size=1, max_size=6),
    num_queries=st.integers(0, 6),
    num_leading=st.integers(0, 2),
)
def test_any_texts(late: LateInteraction, bodies: list[list[int]], num_queries: int, num_leading: int) -> None:
    texts = [[CLS, *body, SEP] for body in bodies]
    done = shape(tokenized(texts), late, num_queries=num_queries, num_leading=num_leading)

    expected = [plain(text, late, num_leading, is_query=at < num_queries) for at, text in enumerate(texts)]
    assert split(done) == [ids for ids, _ in expected]
    assert done.token_ids.dtype == done.offsets.dtype == np.int32
    flag = 0 if late.attends_to_expansion else EXPANSION_TOKEN
    marks = [[0] * (len(ids) - filled) + [flag] * filled for ids, filled in expected]
    assert done.parts.get(Part.MARKS, np.zeros(len(flat(marks)))).tolist() == flat(marks)


def test_types_go_along() -> None:
    late = LateInteraction(query_marker_id=QUERY, document_marker_id=DOCUMENT, query_length=4, expansion_id=MASK)
    done = shape(tokenized([[CLS, SEP], [CLS, 5, SEP]], [[1, 2], [3, 4, 5]]), late)

    assert split(done) == [[CLS, QUERY, SEP, MASK], [CLS, DOCUMENT, 5, SEP]]
    assert done.parts[Part.TOKEN_TYPE_IDS].tolist() == [1, 0, 2, 0, 3, 0, 4, 5]
    assert done.parts[Part.MARKS].tolist() == [0, 0, 0, EXPANSION_TOKEN, 0, 0, 0, 0]


def test_many_texts_are_shaped_slice_by_slice() -> None:
    texts = [[CLS, 0, 7, 7, SEP], *([CLS, number % 80, *[7] * 100, SEP] for number in range(1, 600))]
    late = LateInteraction(document_marker_id=DOCUMENT, query_marker_id=QUERY, query_length=6, expansion_id=MASK)
    found: list[list[int]] = []

    async def work() -> None:
        found.extend(split(await shaped(tokenized(texts), late, num_queries=1, max_seqlen=512)))

    assert turns_during(work()) >= 3
    assert found[0] == [CLS, QUERY, 0, 7, 7, SEP]
    assert found[1:] == [[CLS, DOCUMENT, *text[1:]] for text in texts[1:]]


def test_what_does_not_count() -> None:
    tokens = tokenized([[CLS, 5, 6], [CLS, 5, 7], [5, 5]])
    assert counted(tokens, LateInteraction(), num_queries=1) is None
    assert counted(tokens, None, num_queries=1) is None
    skipped = counted(tokens, LateInteraction(skipped_ids=(5,)), num_queries=1)
    assert skipped is not None
    assert skipped.tolist() == [True, True, True, True, False, True, False, False]  # all of the query counts
    both = counted(tokens, LateInteraction(skipped_ids=(5,), skips_first=True), num_queries=0)
    assert both is not None
    assert both.tolist() == [False, False, True, False, False, True, False, False]


def test_rows_that_count_are_left() -> None:
    tokens = tokenized([[CLS, 5, 6], [CLS], [CLS, 5, 7, 5]])
    rows = np.arange(16, dtype=np.float32).reshape(8, 2)
    model = served_model(late=LateInteraction(skipped_ids=(5,), skips_first=True))
    computed = Computed({OutputKind.MULTI_VECTOR: Rows(rows, tokens.offsets)}, tokens)

    left = asyncio.run(
        rows_that_count(computed, Work(model=model, items=["a"] * 3, num_queries=1, context=RequestContext()))
    )

    assert left.offsets is not None
    assert left.offsets.tolist() == [0, 2, 2, 3]
    assert left.rows.tolist() == rows[[1, 2, 6]].tolist()
    assert left.num_tokens == 8


@pytest.mark.holds("Reranking")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 9) | st.sampled_from([0, 255, 256, 257, 700]), min_size=2, max_size=12),
    seed=st.integers(0, 9),
)
def test_max_sim_of_any_lengths(lengths: list[int], seed: int) -> None:
    numbers = np.random.default_rng(seed)
    rows = numbers.standard_normal((sum(lengths), 3), np.float32)
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    counts = None if seed < 5 else numbers.random(len(rows)) < 0.5

    scores = asyncio.run(max_sim(rows, offsets, counts))

    spans = [slice(start, stop) for start, stop in pairwise(offsets.tolist())]
    query, *documents = [rows[span] if counts is None else rows[span][counts[span]] for span in spans]
    expected = [(document @ query.T).max(axis=0).sum() if len(document) else 0 for document in documents]
    assert scores.dtype == np.float32
    assert np.allclose(scores, expected, rtol=1e-4, atol=1e-4)
