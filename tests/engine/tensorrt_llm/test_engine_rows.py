"""Rows of our classes on the library's backbones equal transformers', on the stand-in that computes in float32."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.engines import difference
from tests.engine.tensorrt_llm.models import (
    FAMILIES,
    answering,
    embedding,
    scoring,
)
from tests.engine.tensorrt_llm.parity import TOLERANCE, distance
from tests.engine.tensorrt_llm.stand_in import library, load, rows
from tests.tiers import full_but


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    with library():
        yield


@pytest.mark.holds("TensorRT-LLM rows equal transformers' rows")
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("pooling", full_but(["last"], ["last", "mean", "cls"]))
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings(family: str, pooling: str, is_causal: bool, tmp_path: Path) -> None:
    direction: dict[str, Any] = {} if is_causal else {"is_causal": False}
    assert distance(embedding(family, tmp_path / "m", pooling, **direction)) <= TOLERANCE


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_a_whole_model(family: str, is_tied: bool, tmp_path: Path) -> None:
    model = embedding(family, tmp_path / "m", "last", has_prefix=True, tie_word_embeddings=is_tied)
    assert distance(model) <= TOLERANCE


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores(family: str, num_labels: int, tmp_path: Path) -> None:
    assert distance(scoring(family, tmp_path / "m", num_labels=num_labels)) <= TOLERANCE


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers(family: str, is_tied: bool, tmp_path: Path) -> None:
    assert distance(answering(family, tmp_path / "m", tie_word_embeddings=is_tied)) <= TOLERANCE


def test_an_answer_of_yes_alone(tmp_path: Path) -> None:
    assert distance(answering("qwen3", tmp_path / "m", no_id=None)) <= TOLERANCE


def test_padding_at_the_end_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """As transformers' classifiers have it, which look for the last token that is not the padding token."""
    model = scoring("qwen2", tmp_path / "m")
    engine = load(model.folder, **model.options)
    sequences = [[5, 6, 0, 0], [7, 0], [9, 0, 9]]
    assert difference(rows(engine, sequences), model.expected([[5, 6], [7], [9, 0, 9]])) <= TOLERANCE
    assert np.isfinite(model.expected(sequences)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_versions_with_attention_in_its_old_place(family: str, tmp_path: Path) -> None:
    with library("old_paths"):
        assert distance(embedding(family, tmp_path / "m", "mean", is_causal=False)) <= TOLERANCE
