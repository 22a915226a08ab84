"""Long texts in windows, and the chunks of one text: rows held against what is computed by hand."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batch_manager import messages as batching
from batch_manager.messages import RequestRefused, RequestResults, Submission
from engine.types import OutputKind, Rows
from server.requests import work
from server.requests.embeddings import _characters as characters_of
from server.requests.embeddings import _means as means_of
from server.requests.embeddings import averages, embed_any
from server.requests.errors import EmptyInput, EngineFailed, InvalidRequest, RequestError, UnsupportedTask
from server.requests.work import Chunking, Computed, Embedded, Trace
from tests.server.edge import Edge, Managers, Tokenizers, served_model
from tests.server.loop_share import turns_during
from tests.server.requests.embed_requests import a_request
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import Token, TokenizedTexts
from wire.parts import PROMPT_TOKEN, Part

FIRST, LAST = 1, 2
ROOM = 8  # tokens of a sequence


def ids_of(text: str) -> list[int]:
    return [ord(character) for character in text]


class Framing(Tokenizers):
    """A token for each character, between two special ones; those of a prompt are marked."""

    async def tokenize(self, texts: Sequence[str], **how: Any) -> TokenizedTexts:
        await self._work(texts, how)
        head, tail = ([FIRST], [LAST]) if how["add_special_tokens"] else ([], [])
        prompt, marks = how["prompt"], PROMPT_TOKEN
        room = min(how["max_tokens"] or ROOM, ROOM) - len(head + tail)
        contents = [ids_of(prompt + text) for text in texts]
        ids = [[*head, *content[:room], *tail] for content in contents]
        types = [[marks * (0 <= at - len(head) < len(prompt)) for at in range(len(each))] for each in ids]
        offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
        truncated = np.array([len(content) > room for content in contents], np.uint8)
        parts = {Part.MARKS: np.concatenate(types).astype(np.uint8)} if prompt else {}
        return TokenizedTexts(np.concatenate(ids).astype(np.int32), offsets, truncated, parts)

    async def tokenize_details(self, texts: Sequence[str], **how: Any) -> list[list[Token]]:
        await self._work(texts, how)
        if "?" in "".join(texts):
            raise TextRefused(TextRefusal.FAILED, ["?" in text for text in texts].index(True))
        head, tail = ([Token(special, "", True, None, None)] * how["add_special_tokens"] for special in (FIRST, LAST))
        return [
            [*head, *(Token(ord(c), c, False, at, at + 1) for at, c in enumerate(how["prompt"] + text)), *tail]
            for text in texts
        ]


def row_of(ids: Sequence[int], types: Sequence[int] | None = None) -> list[float]:
    """What the stand-in computes for a sequence: the mean of what it computes for tokens."""
    rows = [[token_id, token_id % 7, token_id % 5, at, bool(type_)] for at, (token_id, type_) in _tokens(ids, types)]
    return [float(number) for number in np.mean(np.array(rows, np.float64), axis=0)]


def _tokens(ids: Sequence[int], types: Sequence[int] | None) -> list[tuple[int, tuple[int, int]]]:
    return list(enumerate(zip(ids, types or [0] * len(ids), strict=True)))


class Computing(Managers):
    """Rows that depend on every id, its place and its type; `is_mean` False is a model with another pooling."""

    is_mean = True

    async def submit(self, submission: Submission) -> RequestResults:
        await super().submit(replace(submission, outputs=OutputKind.POOLED))
        self.submitted[-1] = submission
        ids = np.frombuffer(submission.token_ids, np.int32).tolist()
        types = list(bytes(submission.parts.get(Part.MARKS, b"")))
        offsets = np.cumsum([0, *submission.seqlens], dtype=np.int32)
        spans = list(zip(offsets.tolist(), offsets.tolist()[1:], strict=False))
        rows = np.array([row_of(ids[a:b], types[a:b] if types else None) for a, b in spans], np.float32)
        if not self.is_mean:
            rows = rows[:, ::-1].copy()
        of_tokens = [[i, i % 7, i % 5, at, 0] for a, b in spans for at, i in enumerate(ids[a:b])]
        results = {OutputKind.POOLED: Rows(rows), OutputKind.TOKENS: Rows(np.array(of_tokens, np.float32), offsets)}
        return RequestResults({kind: results[kind] for kind in submission.outputs}, 0.0, 0.0)


def run(
    chunking: Chunking,
    *,
    is_mean: bool = True,
    error: Exception | None = None,
    tokenizers: Tokenizers | None = None,
    **fields: Any,
) -> Any:
    """The embedded rows, the trace and the edge."""

    async def test() -> tuple[Embedded, Trace, Edge]:
        edge, trace = Edge(), Trace()
        managers = Computing(error=error)
        managers.is_mean = is_mean
        edge.tokenizers = edge.pipeline._tokenizers = tokenizers or Framing()  # type: ignore[assignment]
        edge.managers = edge.pipeline._managers = managers  # type: ignore[assignment]
        model = served_model(max_seqlen=ROOM, dimensions=5, vocab_size=1000, **fields.pop("model", {}))
        try:
            request = a_request(model=model, chunking=chunking, **fields)
            return await embed_any(edge.pipeline, request, trace), trace, edge
        finally:
            assert not edge.page.admitted_tokens.any()

    return asyncio.run(test())


def by_hand(windows: Sequence[str], prompt: str = "") -> list[float]:
    """The average of these windows of a text, by their characters."""
    rows = []
    for window in windows:
        ids = [FIRST, *ids_of(prompt + window), LAST]
        rows.append(row_of(ids, [0, *[PROMPT_TOKEN] * len(prompt), *[0] * (len(window) + 1)]))
    return [float(x) for x in np.average(np.array(rows), axis=0, weights=[len(window) for window in windows])]


@pytest.mark.holds("Long texts")
def test_a_long_text_is_the_average_of_its_windows_by_their_tokens() -> None:
    texts = ["short", "sixsix", "seventh", "a text of twenty-five tok"]
    embedded, trace, edge = run(Chunking.WINDOWS, items=texts)

    expected = [
        by_hand(["short"]),
        by_hand(["sixsix"]),
        by_hand(["sevent", "h"]),
        by_hand(["a text", " of tw", "enty-f", "ive to", "k"]),
    ]
    assert np.allclose(embedded.rows, expected, rtol=1e-6, atol=1e-6)
    num_tokens = sum(map(len, texts)) + 2 * (1 + 1 + 2 + 5)
    assert embedded.num_tokens == trace.num_tokens == num_tokens
    assert sum(trace.seqlens) == num_tokens
    assert embedded.num_truncated == trace.num_truncated == 0
    assert list(edge.managers.submitted[0].seqlens) == [7, 8, 8, 3, 8, 8, 8, 8, 3]


@pytest.mark.holds("Long texts")
def test_the_prompt_stands_before_each_window() -> None:
    embedded, _, edge = run(Chunking.WINDOWS, items=["abc", "abcdefgh"], prompt="p:")

    assert np.allclose(embedded.rows, [by_hand(["abc"], "p:"), by_hand(["abcd", "efgh"], "p:")], rtol=1e-6)
    types = list(bytes(edge.managers.submitted[0].parts[Part.MARKS]))
    assert types == [t for n in (7, 8, 8) for t in [0, PROMPT_TOKEN, PROMPT_TOKEN, *[0] * (n - 3)]]


def test_windows_have_no_special_tokens_if_the_request_wants_none() -> None:
    embedded, _, _ = run(Chunking.WINDOWS, items=["abcdefghij"], add_special_tokens=False)
    rows = [row_of(ids_of(window)) for window in ("abcdefgh", "ij")]
    assert np.allclose(embedded.rows, [np.average(rows, axis=0, weights=[8, 2])], rtol=1e-6)


def test_averages_are_cut_and_scaled_as_other_rows() -> None:
    embedded, _, _ = run(Chunking.WINDOWS, items=["abcdefgh"], model={"normalize": True}, dimensions=3)

    expected = np.array(by_hand(["abcdef", "gh"])[:3])
    assert np.allclose(embedded.rows, [expected / np.linalg.norm(expected)], rtol=1e-6)


def test_a_lower_limit_makes_smaller_windows() -> None:
    embedded, _, _ = run(Chunking.WINDOWS, items=["abcdefgh"], max_tokens=5)
    assert np.allclose(embedded.rows, [by_hand(["abc", "def", "gh"])], rtol=1e-6)


def test_short_texts_cost_nothing_more() -> None:
    embedded, _, edge = run(Chunking.WINDOWS, items=["abc", "abcdef"])
    plain, _, other = run(Chunking.NONE, items=["abc", "abcdef"])

    assert np.array_equal(embedded.rows, plain.rows)
    assert len(edge.tokenizers.asked) == len(other.tokenizers.asked) == 1


def test_rows_of_single_windows_stay_as_they_are_to_the_bit() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    averaged = averages(rows, np.array([0, 1, 1, 2]), np.array([7, 3, 5, 1]))
    assert np.array_equal(averaged[[0, 2]], rows[[0, 3]])
    assert np.allclose(averaged[1], (3 * rows[1] + 5 * rows[2]) / 8, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("chunking", [Chunking.WINDOWS, Chunking.LATE])
def test_what_can_not_be_tokenized_is_named(chunking: Chunking) -> None:
    with pytest.raises(RequestError) as refused:
        run(chunking, items=["a", "b", "seven??"])
    assert refused.value.param == "input[2]"


def test_an_engine_that_fails_on_a_window_names_the_text() -> None:
    error = RequestRefused(batching.RequestRefusal.ENGINE_FAILED, 3)
    with pytest.raises(EngineFailed) as refused:
        run(Chunking.WINDOWS, items=["a", "abcdefgh", "b"], error=error)
    assert refused.value.param == "input[2]"


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        run(Chunking.WINDOWS, items=["a", "abcdefgh"], prompt="prompt")
    assert refused.value.param == "input[0]"  # of one token, and there is room for none


@pytest.mark.holds("Long texts")
@pytest.mark.parametrize("prompt", ["", "p"])
def test_late_chunks_are_means_of_their_tokens_in_one_sequence(prompt: str) -> None:
    embedded, trace, edge = run(Chunking.LATE, items=["ab", "c", "d"], prompt=prompt)

    (submission,) = edge.managers.submitted
    assert np.frombuffer(submission.token_ids, np.int32).tolist() == [FIRST, *ids_of(prompt + "abcd"), LAST]
    at = 1 + len(prompt)
    tokens = np.array([[i, i % 7, i % 5, at + place, 0] for place, i in enumerate(ids_of("abcd"))], np.float64)
    assert np.allclose(embedded.rows, [tokens[:2].mean(axis=0), tokens[2], tokens[3]], rtol=1e-6)
    assert embedded.num_tokens == trace.num_tokens == 6 + len(prompt)
    assert trace.seqlens == [6 + len(prompt)]
    assert embedded.num_truncated == 0


@pytest.mark.holds("Long texts")
def test_a_model_of_chunks_has_its_own_token_between_them() -> None:
    """As PPLXQwen3ContextualModel of perplexity-ai/pplx-embed-context-v1-0.6b encodes: the token is in no mean."""
    embedded, _, edge = run(Chunking.LATE, items=["ab", "c", "d"], model={"chunk_separator_id": 99})

    (submission,) = edge.managers.submitted
    ids = [FIRST, *ids_of("ab"), 99, *ids_of("c"), 99, *ids_of("d"), LAST]
    assert np.frombuffer(submission.token_ids, np.int32).tolist() == ids
    tokens = np.array([[i, i % 7, i % 5, at, 0] for at, i in enumerate(ids)], np.float64)
    assert np.allclose(embedded.rows, [tokens[1:3].mean(axis=0), tokens[4], tokens[6]], rtol=1e-6)
    with pytest.raises(InvalidRequest, match="9 tokens together, and late_chunking takes 8 at most"):
        run(Chunking.LATE, items=["ab", "cd", "e"], model={"chunk_separator_id": 99})


def test_chunks_of_more_tokens_than_the_model_takes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="9 tokens together, and late_chunking takes 8 at most") as refused:
        run(Chunking.LATE, items=["abcd", "efg"])
    assert refused.value.param == "input"


def test_an_empty_chunk_is_refused() -> None:
    with pytest.raises(EmptyInput) as refused:
        run(Chunking.LATE, items=["ab", "", "c"])
    assert refused.value.param == "input[1]"


@pytest.mark.holds("Long texts")
def test_a_model_whose_row_is_no_mean_has_no_late_chunks() -> None:
    with pytest.raises(UnsupportedTask) as refused:
        run(Chunking.LATE, items=["ab", "cd"], is_mean=False)
    assert refused.value.param == "late_chunking"


@pytest.mark.holds("Long texts")
@pytest.mark.parametrize("prompt", ["", "p"])
@pytest.mark.parametrize("normalize", [None, True])
def test_chunks_of_a_fixed_size_are_means_of_all_tokens(prompt: str, normalize: bool | None) -> None:
    texts = ["abcd", "e"]
    how: dict[str, Any] = {"items": texts, "prompt": prompt, "chunk_size": 3, "normalize": normalize}
    embedded, trace, edge = run(Chunking.FIXED, **how)

    whole = [[FIRST, *ids_of(prompt + text), LAST] for text in texts]
    (submission,) = edge.managers.submitted
    assert np.frombuffer(submission.token_ids, np.int32).tolist() == [one for ids in whole for one in ids]
    assert not submission.parts  # a prompt counts, also with a model that leaves it out of its mean
    expected = [
        np.mean([[i, i % 7, i % 5, start + at, 0] for at, i in enumerate(ids[start : start + 3])], axis=0)
        for ids in whole
        for start in range(0, len(ids), 3)
    ]
    if normalize:
        expected = [row / np.linalg.norm(row) for row in expected]
    assert np.allclose(embedded.rows, expected, rtol=1e-6)
    counts = [-(-len(ids) // 3) for ids in whole]
    assert embedded.offsets is not None
    assert embedded.offsets.tolist() == [0, counts[0], sum(counts)]
    assert embedded.num_tokens == trace.num_tokens == sum(map(len, whole))
    assert [[chunk.token_range for chunk in each] for each in embedded.chunks] == [
        [(start, min(start + 3, len(ids))) for start in range(0, len(ids), 3)] for ids in whole
    ]
    of_text = [(0, 1), (1, 4), None] if prompt else [(0, 2), (2, 4)]
    assert [chunk.char_range for chunk in embedded.chunks[0]] == of_text


def test_a_chunk_larger_than_any_text_is_its_row() -> None:
    embedded, _, _ = run(Chunking.FIXED, items=["abc"], chunk_size=2**63 - 1)
    plain, _, _ = run(Chunking.NONE, items=["abc"])
    assert np.allclose(embedded.rows, plain.rows, rtol=1e-6)


@pytest.mark.holds("Long texts")
def test_a_text_in_chunks_is_never_cut() -> None:
    class Refusing(Framing):
        async def tokenize(self, texts: Sequence[str], **how: Any) -> TokenizedTexts:
            assert (how["truncation"], how["max_tokens"]) == (Truncation.NONE, None)
            raise TextRefused(TextRefusal.TOO_LONG, 1, max_tokens=ROOM)

    with pytest.raises(InvalidRequest, match=r"input\[1\] is longer than 8 tokens"):
        run(Chunking.FIXED, items=["a", "abcdefghij"], chunk_size=2, tokenizers=Refusing())


@pytest.mark.holds("Long texts")
def test_chunks_of_more_rows_than_can_be_answered_cost_no_details(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_TOKEN_ROW_BYTES", 100)  # of five tokens
    tokenizers = Framing()
    with pytest.raises(InvalidRequest, match="answer would be too large"):
        run(Chunking.FIXED, items=["abc", "d"], chunk_size=1, tokenizers=tokenizers)
    assert len(tokenizers.asked) == 1


# What vLLM's tests of its ranges assert (tests/entrypoints/pooling/token_embed).
@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, [None, (0, 1), (2, 3), (2, 3), (4, 6), None]), (4, [(0, 3), (4, 6)])],
)
def test_ranges_keep_unicode_overlaps_and_chunks_of_special_tokens(size: int, expected: list[Any]) -> None:
    places = [None, (0, 1), (2, 3), (2, 3), (4, 6), None]
    tokens = [Token(0, "", place is None, *(place or (None, None))) for place in places]
    for prompt in (0, 10):
        moved = [
            token._replace(start=token.start + prompt, stop=token.stop + prompt)
            if token.start is not None and token.stop is not None
            else token
            for token in tokens
        ]
        assert [characters_of(moved[at : at + size], prompt) for at in range(0, 6, size)] == expected


@pytest.mark.holds("Long texts")
@pytest.mark.parametrize("prompt", ["", "p"])
def test_documents_are_computed_each_as_a_whole(prompt: str) -> None:
    how: dict[str, Any] = {"prompt": prompt, "truncation": Truncation.NONE, "field": "inputs"}
    items, sizes = ["ab", "c", "de", "f", "gh"], [2, 1, 2]
    embedded, trace, edge = run(Chunking.DOCUMENTS, items=items, document_sizes=sizes, **how)

    first, _, _ = run(Chunking.LATE, items=["ab", "c"], **how)
    alone, _, _ = run(Chunking.NONE, items=["de"], **how)
    last, _, _ = run(Chunking.LATE, items=["f", "gh"], **how)
    expected = np.concatenate([first.rows, alone.rows, last.rows])
    assert np.allclose(embedded.rows, expected, rtol=1e-6)
    num_prompt = len(prompt)
    assert list(edge.managers.submitted[0].seqlens) == [5 + num_prompt, 4 + num_prompt, 5 + num_prompt]
    assert embedded.num_tokens == trace.num_tokens == 14 + 3 * num_prompt


@pytest.mark.parametrize(
    ("items", "sizes", "param"),
    [
        (["ab", "cdefg", "a"], [2, 1], "inputs[0]"),
        (["a", "b", "", "c"], [1, 1, 2], "inputs[2][0]"),
        (["a", "b", "c", "d?"], [1, 1, 2], "inputs[2][1]"),
    ],
)
def test_what_is_wrong_in_a_document_is_named(items: list[str], sizes: list[int], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        run(Chunking.DOCUMENTS, items=items, document_sizes=sizes, field="inputs")
    assert refused.value.param == param


def test_others_run_between_the_means_of_a_long_text() -> None:
    """However many chunks it has, and however long they are."""
    of_tokens = np.random.default_rng(1).random((3000, 64), np.float32)
    tokens = TokenizedTexts(np.zeros(3000, np.int32), np.array([0, 3000], np.int32), np.zeros(1, np.uint8))
    rows = {OutputKind.TOKENS: Rows(of_tokens), OutputKind.POOLED: Rows(of_tokens.mean(axis=0)[None])}
    bounds = np.array([*range(501), 2998], np.int32).repeat(2)[1:-1]
    means = list[NDArray[np.float32]]()

    async def work() -> None:
        means.append(await means_of(Computed(rows, tokens), [bounds], "late_chunking"))

    assert turns_during(work()) > 500
    expected = [of_tokens[begin:end].mean(axis=0, dtype=np.float64) for begin, end in bounds.reshape(-1, 2)]
    assert np.allclose(means[0], expected, rtol=1e-6)


@pytest.mark.parametrize("chunking", [Chunking.FIXED, Chunking.DOCUMENTS])
def test_a_model_whose_row_is_no_mean_has_no_chunks(chunking: Chunking) -> None:
    with pytest.raises(UnsupportedTask):
        run(chunking, items=["ab", "cd"], document_sizes=[2], chunk_size=2, is_mean=False)
