"""RoBERTa and XLM-RoBERTa on the library's BERT: transformers' rows, with the positions of transformers.

The stand-in computes them in float16, as the class asks for. Positions from 0, or those of a whole packed row, are
wrong by a hundred times that.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.rows_numpy import position_ids
from engine.tensorrt_llm import models
from engine.types import ModelError
from tests.engine.engines import difference
from tests.engine.tensorrt_llm.models import ENCODERS, Model, classifying, encoding, with_options
from tests.engine.tensorrt_llm.parity import SEQLENS, distance
from tests.engine.tensorrt_llm.stand_in import library, load, rows
from tests.engine.tiny_models import arbitrary, batch

HALF = 5e-3  # float16
PADDING = 1


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    with library():
        yield


def half(model: Model, **options: Any) -> Model:
    return with_options(model, dtype="float16", **options)


@pytest.mark.holds("TensorRT-LLM rows equal transformers' rows")
@pytest.mark.parametrize("has_prefix", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", ENCODERS)
def test_embeddings(family: str, pooling: str, has_prefix: bool, tmp_path: Path) -> None:
    assert distance(half(encoding(family, tmp_path / "m", pooling, has_prefix=has_prefix))) <= HALF


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("family", ENCODERS)
def test_scores(family: str, num_labels: int, tmp_path: Path) -> None:
    assert distance(half(classifying(family, tmp_path / "m", num_labels=num_labels))) <= HALF


@pytest.mark.holds("TensorRT-LLM rows equal transformers' rows")
def test_padding_tokens_that_a_text_spells_out(tmp_path: Path) -> None:
    """They have the padding's position, those after them count on without them, and none is left out of the scores."""
    model = classifying("xlm-roberta", tmp_path / "m")
    sequences = [[5, PADDING, 6, 7], [PADDING, PADDING, 8], [9, PADDING]]
    found = rows(load(model.folder, dtype="float16"), sequences)
    assert difference(found, model.expected(sequences)) <= HALF


def test_graphs_pad_batches_and_rows_stay_the_same(tmp_path: Path) -> None:
    model = half(encoding("xlm-roberta", tmp_path / "m", "mean"), tensorrt_llm_cuda_graphs=True)
    engine = load(model.folder, **model.options)
    graphs = engine._encode.__self__.llm._encoder_executor.model_engine.encoder_cuda_graph_runner  # type: ignore[attr-defined]
    before = graphs.num_replays
    sequences = arbitrary((5, 17, 1))
    assert difference(rows(engine, sequences), model.expected(sequences)) <= HALF
    assert graphs.num_replays > before


def test_without_being_asked_it_computes_in_bfloat16(tmp_path: Path) -> None:
    engine = load(encoding("roberta", tmp_path / "m", "cls").folder, pooling="cls")
    assert engine.info.dtype == "bfloat16"


def test_positions_are_those_of_the_other_engines() -> None:
    sequences = [*arbitrary(SEQLENS), [PADDING, 5, PADDING, PADDING, 6], [PADDING]]
    packed = batch(sequences)
    places = torch.from_numpy(np.concatenate([np.arange(len(each), dtype=np.int32) for each in sequences]))
    found = models.positions(torch.from_numpy(packed.token_ids), places, PADDING)
    assert found.dtype == torch.int32
    assert found.tolist() == position_ids(packed, PADDING).tolist()


def test_a_module_that_upstream_did_not_have_ends_the_start() -> None:
    with pytest.raises(ModelError, match=r"has a module layers\.0\.self_attn\.q_norm in its BERT"):
        models.in_files("layers.0.self_attn.q_norm")
