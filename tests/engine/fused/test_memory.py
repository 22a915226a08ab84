"""Whether a model fits into a GPU, by figures, and into the share of it that a process is held to."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.fused import loading, offer, weights
from engine.fused.model.spec import LayerSpec
from engine.fused.offer import FusedConfig
from engine.fused.weights import Memory
from engine.messages import LoadOptions
from engine.model.weights import WeightSizes
from engine.types import DeviceTrouble, ModelError
from tests.engine.engines import load_options
from tests.engine.fused.model.models import SPEC
from tests.engine.tiny_models import save

GB = 10**9
QWEN3_8B = dataclasses.replace(
    SPEC, hidden_size=4096, num_heads=32, intermediate_size=12_288, vocab_size=151_665, layers=(LayerSpec(),) * 36
)
WEIGHTS = WeightSizes(num_bytes=15_136_000_000, num_parameters={"BF16": 7_568_000_000})


def check(free: int, *, itemsize: int = 2, max_seqlen: int = 32_768) -> None:
    there_is = Memory(free=free, total=80 * GB, device="cuda:1")
    weights.check_memory(QWEN3_8B, WEIGHTS, itemsize=itemsize, max_seqlen=max_seqlen, memory=there_is)


def test_a_model_that_fits_is_let_through() -> None:
    check(79 * GB)
    check(24 * GB)


def test_one_whose_weights_do_not_fit_is_refused_with_what_it_needs_and_what_there_is() -> None:
    with pytest.raises(
        DeviceTrouble, match=r"needs 2\d\.\d GB of GPU memory, and cuda:1 has 12\.0 GB free of 80\.0: free"
    ):
        check(12 * GB)


def test_a_share_counts_as_all_there_is() -> None:
    """The smaller of it and what is free, so that models side by side are refused before either is loaded."""
    half = Memory(free=79 * GB, total=80 * GB, device="cuda:1", share=0.5)
    tenth = dataclasses.replace(half, share=0.1)
    assert (half.available, dataclasses.replace(half, free=7).available) == (40 * GB, 7)

    weights.check_memory(QWEN3_8B, WEIGHTS, itemsize=2, max_seqlen=32_768, memory=half)
    words = r"cuda:1 has 79\.0 GB free of 80\.0, and the engine's share is 0\.1 of it: raise --gpu-memory-share"
    with pytest.raises(DeviceTrouble, match=words):
        weights.check_memory(QWEN3_8B, WEIGHTS, itemsize=2, max_seqlen=32_768, memory=tenth)


def test_weights_count_as_they_are_computed_not_as_they_are_stored() -> None:
    check(24 * GB)
    with pytest.raises(ModelError):
        check(24 * GB, itemsize=4)


def test_long_sequences_that_do_not_fit_are_refused_with_a_length_that_does() -> None:
    with pytest.raises(DeviceTrouble, match=r"sequences of 32768 tokens .* --max-input-length (\d+) fits") as refused:
        check(18 * GB)
    fitting = int(str(refused.value).split("--max-input-length ")[1].split()[0])
    check(18 * GB, max_seqlen=fitting)
    with pytest.raises(ModelError):
        check(18 * GB, max_seqlen=fitting + 1)


def test_what_a_token_takes() -> None:
    """Two rows of the hidden size, and the MLP: gate, up, their product, and what goes back."""
    assert weights.numbers_per_token(QWEN3_8B) == 3 * 4096 + 3 * 12_288
    narrow = dataclasses.replace(QWEN3_8B, intermediate_size=16)
    assert weights.numbers_per_token(narrow) == 3 * 4096 + (4096 + 2 * 1024) + 4096


@pytest.fixture
def chosen(tmp_path: Path) -> FusedConfig:
    """For a GPU, of which the process may have a quarter."""
    found = offer.choose(load_options(save("bert", tmp_path / "model"), pooling="mean", memory_share=0.25))
    assert found.memory_share == 0.25
    return dataclasses.replace(found, device=torch.device("cuda:1"), capability=(9, 0))


@pytest.mark.holds("Engines on a GPU")
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


@pytest.mark.holds("Engines on a GPU")
def test_what_is_reckoned_with(chosen: FusedConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Memory] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (7 << 30, 8 << 30))
    monkeypatch.setattr(weights, "check_memory", lambda *_, memory, **__: seen.append(memory))
    source: Any = type("FusedWeights", (), {"spec": None})

    weights._check_memory(source, chosen)

    (found,) = seen
    assert (found.free, found.available) == (7 << 30, 2 << 30)
