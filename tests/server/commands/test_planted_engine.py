"""An engine is a module and a row: auto, doctor, inspect and a load know one that is planted, with an option and a
reason of its own.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine import registry
from engine.machine.cuda_driver import Cuda
from engine.messages import LoadOptions
from engine.registry import CPU, EngineRow
from server.commands.doctor import doctor
from server.commands.inspect import inspect
from server.settings.flag import flag
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_plan import engine_options, plan_model
from wire.dataclass_json import from_json, to_json

MODULE = """
from dataclasses import dataclass

from engine import fake, offer


@dataclass(frozen=True, kw_only=True)
class Options(offer.Options):
    planted_place: str = "earth"


class Offer(offer.Offer):
    def check(self, row, asked, folder):
        if Options.of(asked.flags).planted_place == "moon":
            yield f"it has no air for {folder.architecture} there"


OFFER = Offer(options=Options)


def load(*, name, reason, options, on_stage):
    on_stage(options.own_of("planted", Options).planted_place)
    return fake.load(name=name, reason=reason, options=options)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedSettings(ModelSettings):
    planted_place: str = flag("earth", "Engine", "Where the planted engine computes.")


@pytest.fixture(autouse=True)
def _planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computer: object) -> Iterator[None]:
    (tmp_path / "planted_engine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    name, others = "planted_engine", dict(registry.ENGINES)
    row = EngineRow(name="planted", module=name, offer=name, packages=(name,), kinds=(CPU,), auto_on=(CPU,))
    registry.ENGINES.clear()
    registry.ENGINES.update({row.name: row, **others})
    yield
    registry.ENGINES.clear()
    registry.ENGINES.update(others)


def asked(capsys: pytest.CaptureFixture[str], command: Any, place: str) -> Any:
    command(Settings(models=(PlantedSettings(planted_place=place),)), as_json=True)
    return json.loads(capsys.readouterr().out)


def test_doctor_says_that_auto_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, doctor, "mars")

    assert found["engine"] == "planted"
    assert found["engines"]["planted"] == {"can_serve": True, "devices": ["cpu"], "why_not": [], "notes": []}


def test_doctor_says_its_own_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, doctor, "moon")

    assert found["engine"] == "openvino"
    assert found["engines"]["planted"]["why_not"] == ["it has no air for bert there"]


def test_inspect_says_that_it_is_tried_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, inspect, "mars")["engines"][0] == "planted: installed, tried first"


def test_a_start_loads_it_with_its_own_option() -> None:
    settings = Settings(models=(PlantedSettings(planted_place="mars"),))
    plan = plan_model(settings.models[0], settings, cuda=Cuda)
    options = to_json(engine_options(plan, "cpu", cache_dir=None, num_threads=1))
    told: list[str] = []

    loaded = registry.load(
        plan.engine,
        name="m",
        reason=plan.reason,
        options=from_json(LoadOptions, json.loads(json.dumps(options))),
        on_stage=told.append,
    )

    loaded.close()
    assert told == ["planted: import", "planted: mars"]
    assert "the first of planted, openvino, transformers" in loaded.info.reason
