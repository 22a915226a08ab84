"""Rank correlation with graded pairs of sentences, as SemEval measures it: engines against sentence-transformers.

text_pairs.tsv has 80 pairs of our own, graded from 0 (unrelated) to 5 (the same).
"""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from engine import registry
from engine.model import model_folder
from engine.types import Batch, EngineError, OutputKind
from tests.engine.load_options import load_options
from tests.tiers import full
from tokenizer_pool.messages import TokenizerSpec
from tokenizer_pool.tokenizer import Tokenizer

PAIRS = Path(__file__).with_name("text_pairs.tsv")


@dataclasses.dataclass(frozen=True)
class Pairs:
    grades: list[float]
    texts: list[str]  # first and second of each pair in turn


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    with PAIRS.open() as file:
        rows = list(csv.reader(file, delimiter="\t"))
    return Pairs([float(grade) for grade, *_ in rows], [text for _, *both in rows for text in both])


@pytest.fixture(scope="module")
def expected(pairs: Pairs, minilm_folder: Path) -> float:
    model = SentenceTransformer(str(minilm_folder), device="cpu")
    return correlation(pairs.grades, model.encode(pairs.texts, show_progress_bar=False))


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """From 0 up; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[inverse]


def correlation(grades: list[float], rows: NDArray[np.float32]) -> float:
    """Spearman's, times 100, between the grades and the cosines of each pair's rows."""
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float64)
    cosines = (unit[0::2] * unit[1::2]).sum(axis=1)
    return float(np.corrcoef(ranks(np.array(grades)), ranks(cosines.round(6)))[0, 1] * 100)


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
