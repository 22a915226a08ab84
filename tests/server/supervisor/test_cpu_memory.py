"""A server whose weights do not fit into memory is refused before a process is started."""

from pathlib import Path
from typing import Any

import pytest

from engine.machine import host
from engine.model.weights import weights_of
from engine.store.model_source import resolve
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_plan import ModelPlan, plan_models
from server.supervisor.resources import MARGIN, check_memory


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("sentence-transformers/all-MiniLM-L6-v2").path


def plans(*models: dict[str, Any]) -> list[ModelPlan]:
    made = [
        ModelSettings(**{"served_model_name": f"m{number}", "engine": "transformers", "devices": "cpu", **model})
        for number, model in enumerate(models)
    ]
    return plan_models(Settings(models=tuple(made)))


@pytest.mark.holds("Engines on a CPU")
@pytest.mark.parametrize(
    ("models", "bytes_of_number"),
    [
        ([{}], 4),
        ([{"engine": "openvino"}], 16 / 3),  # some weights are laid out twice
        ([{"engine": "auto", "dtype": "float32"}], 16 / 3),
        ([{"engine": "openvino", "quantization": "int8"}], 4),
        ([{"engine": "openvino", "dtype": "bfloat16"}], 4),  # it is converted from float32
        ([{"dtype": "bfloat16"}], 2),
        ([{"devices": "cpu"}, {"dtype": "float16"}], 6),
    ],
)
def test_weights_that_just_fit_and_just_do_not(
    models: list[dict[str, Any]], bytes_of_number: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plans(*({"model_id": str(folder), **model} for model in models))
    needed = MARGIN + int(bytes_of_number * sum(weights_of(folder).num_parameters.values()))
    monkeypatch.setattr(host, "memory", lambda: needed)
    check_memory(planned)
    monkeypatch.setattr(host, "memory", lambda: needed - 1)
    with pytest.raises(SettingsError, match=r"^--model-id: the weights of m0 take 0\.\d+ GB on the CPU[^\n]*$"):
        check_memory(planned)


def test_a_fake_engine_has_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory", lambda: 0)
    check_memory(plans({"engine": "fake"}))
