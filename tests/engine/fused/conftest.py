"""What the fused engine's tests share."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.fused import loading, offer
from engine.fused.model.linear import without_kernel
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.runner.pretended_cuda import PretendedCuda
from tests.engine.tiny_models import save


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """BERT's folder."""
    return save("bert", tmp_path / "model")


@pytest.fixture(autouse=True)
def no_known_lack() -> Iterator[None]:
    """What one test's stand-in for cuBLAS lacks, the next one's has."""
    yield
    without_kernel.clear()


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads are as on a Hopper GPU, which is pretended; queries have at most 64 tokens."""
    choose = offer.choose
    PretendedCuda(monkeypatch)
    monkeypatch.setattr(offer, "choose", lambda given: dataclasses.replace(choose(given), capability=(9, 0)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr(loading, "_ops", lambda _: ReferenceOps())
    monkeypatch.setattr(loading, "keep_kernels", lambda *_: None)
    monkeypatch.setattr(loading, "_MAX_QUERY", 64)
