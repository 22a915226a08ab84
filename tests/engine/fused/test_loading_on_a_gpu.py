"""A whole load as on a Hopper GPU, which is pretended: what is recorded before the first request."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.fused import loading, offer
from engine.fused import start as fused
from engine.fused.cuda_device import CudaDevice, Graph, on_recorder
from engine.fused.model.reference import ReferenceOps
from engine.fused.offer import FusedConfig
from engine.fused.packing import Shape
from engine.messages import LoadOptions
from engine.selftest import selfcheck
from tests.engine.engines import load_options
from tests.engine.fused.runner.pretended_cuda import PretendedCuda
from tests.engine.tiny_models import arbitrary, save

MAX_QUERY = 64  # tokens


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = offer.choose

    def choose(options: LoadOptions) -> FusedConfig:
        made = chosen(options)
        return FusedConfig(folder=made.folder, device=torch.device("cpu"), capability=(9, 0), dtype=torch.float32)

    PretendedCuda(monkeypatch)
    monkeypatch.setattr(offer, "choose", choose)
    monkeypatch.setattr(loading, "_ops", lambda _: ReferenceOps())
    monkeypatch.setattr(loading, "_MAX_QUERY", MAX_QUERY)


@pytest.mark.usefixtures("on_hopper")
def test_each_shape_is_recorded_once_and_attention_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: Counter[Shape] = Counter()
    record = CudaDevice._record

    def noted(device: CudaDevice, shape: Shape) -> Graph:
        recorded[shape] += 1
        return record(device, shape)

    monkeypatch.setattr(CudaDevice, "_record", noted)
    folder = save("bert", tmp_path / "model")
    engine = fused.load(name="m", reason="asked", options=load_options(folder, device="cpu", max_num_tokens=2048))
    assert set(recorded.values()) == {1}
    assert {shape.num_tokens for shape in recorded} == {16, 32, MAX_QUERY, 2048}
    assert [note for note in engine.info.notes if "attention" in note] == []
    sequences = [np.array(ids, np.int32) for ids in arbitrary((5, 17))]
    rows = selfcheck.rows_of(engine, sequences)
    on_recorder(int)
    plain = fused.load(name="m", reason="asked", options=load_options(folder, device="cpu"))
    assert np.abs(rows - selfcheck.rows_of(plain, sequences)).max() < 1e-5
