"""How engines on the same GPU share its memory, and that an engine is told its part."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engine.machine.devices import Devices
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.supervisor.model_plan import ModelPlan, engine_options
from server.supervisor.resources import memory_shares

pytestmark = pytest.mark.holds("Engines on a GPU")


def model(*devices: str, share: float | None = None) -> ModelPlan:
    settings = ModelSettings(gpu_memory_share=share, engine="transformers")
    folder = SimpleNamespace(path=Path("/model"), max_seqlen=64)
    plan = SimpleNamespace(
        settings=settings, devices=Devices(devices, ""), engine="transformers", folder=folder, loras=()
    )
    return cast(ModelPlan, plan)


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([model("cpu"), model("cpu")], [{}, {}]),
        ([model("cuda:0")], [{"cuda:0": 1.0}]),
        ([model("cuda:0"), model("cuda:0")], [{"cuda:0": 0.5}] * 2),
        ([model("cuda:0", "cuda:1"), model("cuda:1")], [{"cuda:0": 1.0, "cuda:1": 0.5}, {"cuda:1": 0.5}]),
        ([model("cuda:0", "cuda:0")], [{"cuda:0": 0.5}]),
        ([model("cuda:0", share=0.5), model("cuda:0"), model("cuda:0")], [{"cuda:0": 0.5}, *[{"cuda:0": 0.25}] * 2]),
        ([model("cuda:0", share=0.3)], [{"cuda:0": 0.3}]),
        ([model("cuda:0", share=0.1) for _ in range(10)], [{"cuda:0": 0.1}] * 10),
    ],
)
def test_shares(models: Sequence[ModelPlan], expected: list[dict[str, float]]) -> None:
    assert memory_shares(models) == expected


@pytest.mark.parametrize(
    "models",
    [
        [model("cuda:0", share=0.6), model("cuda:0", share=0.5)],
        [model("cuda:0", "cuda:0", share=0.6)],
        [model("cuda:0", share=1.0), model("cuda:0")],
    ],
)
def test_more_than_all_of_it_is_refused(models: Sequence[ModelPlan]) -> None:
    with pytest.raises(SettingsError, match=r"^--gpu-memory-share [^\n]*cuda:0"):
        memory_shares(models)


def test_the_engine_is_told() -> None:
    options = engine_options(model("cuda:0"), "cuda:0", cache_dir=None, num_threads=1, memory_share=0.25)

    assert (options.device, options.memory_share) == ("cuda:0", 0.25)
