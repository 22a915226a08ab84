"""Rank correlation with graded pairs of sentences, as SemEval measures it: engines against sentence-transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from benchmarks.measuring.graded_pairs import Pairs, correlation, graded_pairs, ranks
from engine import registry
from engine.model import model_folder
from engine.types import Batch, EngineError, OutputKind
from tests.engine.engines import load_options
from tests.tiers import full
from tokenizer_pool.messages import TokenizerSpec
from tokenizer_pool.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return graded_pairs()


@pytest.fixture(scope="module")
def expected(pairs: Pairs, minilm_folder: Path) -> float:
    model = SentenceTransformer(str(minilm_folder), device="cpu")
    return correlation(pairs.grades, model.encode(pairs.texts, show_progress_bar=False))


def rows_of(texts: list[str], engine: str, folder: Path, **options: Any) -> NDArray[np.float32]:
    read = model_folder.read(folder)
    tokenizer = Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=read.max_seqlen))
    tokens = tokenizer.encode(texts)
    loaded = registry.load(
        engine,
        name="m",
        reason="",
        options=load_options(folder, max_num_tokens=65536, max_num_seqs=1024, num_threads=2, **options),
    )
    try:
        loaded.submit(Batch("m", OutputKind.POOLED, tokens.token_ids, tokens.offsets))
        _, results = loaded.collect()
    finally:
        loaded.close()
    assert not isinstance(results, EngineError)
    return results[OutputKind.POOLED].values


def test_the_measure_itself() -> None:
    rows = np.array([[1, 0], [1, 0], [1, 0], [1, 1], [1, 0], [0, 1]], np.float32)

    assert correlation([5, 3, 1], rows) == pytest.approx(100)
    assert correlation([1, 3, 5], rows) == pytest.approx(-100)
    assert ranks(np.array([7, 5, 7, 9])).tolist() == [1.5, 0, 1.5, 3]


@pytest.mark.holds("Engines rank texts as sentence-transformers does")
@pytest.mark.parametrize("engine", ["transformers", *full("openvino")])
def test_an_engine_ranks_as_sentence_transformers_does(
    engine: str, pairs: Pairs, expected: float, minilm_folder: Path
) -> None:
    reached = correlation(pairs.grades, rows_of(pairs.texts, engine, minilm_folder))

    assert expected > 80  # the grades mean something
    assert reached == pytest.approx(expected, abs=0.01)


@pytest.mark.full
def test_int8_ranks_nearly_as_well(pairs: Pairs, expected: float, minilm_folder: Path) -> None:
    rows = rows_of(pairs.texts, "openvino", minilm_folder, quantization="int8")

    assert correlation(pairs.grades, rows) == pytest.approx(expected, abs=2)
