"""The gate's rows on a CPU: shared out among one-thread engines, they are those of one engine, in the same order."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.fused import offer, weights
from engine.fused.assembly import Model, assemble
from engine.fused.engine import FusedEngine
from engine.fused.model.reference import ReferenceOps
from engine.fused.quantization import quantizing
from engine.fused.quantization.quantizing import GateRows
from engine.rows_torch import RowModules
from engine.selftest import sample_ids, selfcheck
from engine.selftest.sample_ids import Sequences
from engine.types import Engine, ModelError
from tests.engine.engines import load_options
from tests.engine.tiny_models import VOCAB_SIZE, save

SEQLENS = (5, 60, 1, 17, 33, 2, 64, 9, 9, 41, 3, 28)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    chosen = offer.choose(load_options(save("bert", tmp_path / "model")))
    source = weights.open_model(chosen).source
    return Model(
        name="m",
        reason="asked",
        chosen=chosen,
        spec=source.spec,
        weights=source.weights(),
        modules=RowModules(),
        ops=ReferenceOps(),
        max_num_seqs=64,
        num_threads=3,
    )


@pytest.fixture
def sequences(model: Model) -> Sequences:
    return sample_ids.arbitrary(model.chosen.folder, SEQLENS)


def test_rows_are_those_of_one_engine(model: Model, sequences: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizing, "_NUM_TOKENS_ON_CPU", 64)  # so that there is more than one batch
    expected = GateRows(dataclasses.replace(model, num_threads=1)).rows(sequences)
    rows = GateRows(model).rows(sequences)
    assert rows.shape == (len(SEQLENS), model.spec.hidden_size)
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert np.abs(expected - np.roll(expected, 1, axis=0)).max() > 0.01  # rows differ, so their order is tested


def test_each_core_has_an_engine_of_one_thread(
    model: Model, sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizing, "_NUM_TOKENS_ON_CPU", 64)
    num_threads: list[int] = []
    batches: list[list[int]] = []
    rows_of = selfcheck.rows_of

    def assembled(made: Model, **others: Any) -> FusedEngine:
        num_threads.append(made.num_threads)
        return assemble(made, **others)

    def computed(engine: Engine, some: Sequences) -> NDArray[np.float32]:
        batches.append([len(sequence) for sequence in some])
        return rows_of(engine, some)

    monkeypatch.setattr(quantizing, "assemble", assembled)
    monkeypatch.setattr(selfcheck, "rows_of", computed)
    GateRows(model).rows(sequences)
    assert num_threads == [1, 1, 1]
    assert sorted(seqlen for batch in batches for seqlen in batch) == sorted(SEQLENS)
    assert all(sum(batch) <= 64 for batch in batches)


def test_one_that_fails_fails_all(model: Model, sequences: Sequences) -> None:
    sequences[4][0] = VOCAB_SIZE
    with pytest.raises(ModelError, match="can't run the model"):
        GateRows(model).rows(sequences)
