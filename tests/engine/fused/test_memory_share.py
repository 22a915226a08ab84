"""The fused engine holds its process to its share of a GPU before it loads anything, and reckons with it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.fused import loading, offer, weights
from engine.fused.offer import FusedConfig
from engine.fused.weights import Memory
from engine.messages import LoadOptions
from tests.engine.engines import load_options
from tests.engine.tiny_models import save

pytestmark = pytest.mark.holds("Engines on a GPU")


@pytest.fixture
def chosen(tmp_path: Path) -> FusedConfig:
    """For a GPU, of which the process may have a quarter."""
    found = offer.choose(load_options(save("bert", tmp_path / "model"), pooling="mean", memory_share=0.25))
    assert found.memory_share == 0.25
    return dataclasses.replace(found, device=torch.device("cuda:1"), capability=(9, 0))


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_process_is_held_to_it(share: float, chosen: FusedConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(offer, "choose", lambda _: dataclasses.replace(chosen, memory_share=share))
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *these: calls.append(these))
    monkeypatch.setattr(loading, "_Loading", lambda *_, **__: Loading(calls))

    loading.load(None, name="m", reason="", options=LoadOptions(device="cpu"))  # type: ignore[arg-type]  # phases, which nothing uses

    held = [(0.25, torch.device("cuda:1"))] if share < 1.0 else []
    assert calls == [torch.device("cuda:1"), *held, "loaded"]


class Loading:
    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls

    def load(self) -> None:
        self._calls.append("loaded")


def test_what_is_reckoned_with(chosen: FusedConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Memory] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (7 << 30, 8 << 30))
    monkeypatch.setattr(weights, "check_memory", lambda *_, memory, **__: seen.append(memory))
    source: Any = type("FusedWeights", (), {"spec": None})

    weights._check_memory(source, chosen)

    (found,) = seen
    assert (found.free, found.available) == (7 << 30, 2 << 30)
