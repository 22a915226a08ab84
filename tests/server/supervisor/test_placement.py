"""Which topology a server gets, and why; and what compact is refused with."""

import dataclasses
from typing import Any

import pytest

from engine.machine import cores
from engine.machine.cuda_driver import Gpu
from engine.machine.devices import Devices
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_plan import ModelPlan, plan_models
from server.supervisor.placement import Placement, place

MODEL = ModelSettings(engine="fake", served_model_name="one")
ON_GPU = Devices(("cuda:0",), "--devices cuda:0", (Gpu(0, "NVIDIA H200", (9, 0), 1 << 37),))


@pytest.fixture
def plan() -> ModelPlan:
    (planned,) = plan_models(Settings(models=(MODEL,)))
    return planned


def placed(plan: ModelPlan, monkeypatch: pytest.MonkeyPatch, *, usable: int = 2, **flags: Any) -> Placement:
    monkeypatch.setattr(cores, "usable", lambda: usable)
    return place(Settings(models=(MODEL,), **flags), [plan])


def counts(placement: Placement) -> tuple[int, int, int]:
    return placement.num_frontends, placement.num_tokenizers, placement.num_managers


@pytest.mark.parametrize("usable", [1, 4])
def test_a_small_machine_gets_compact(usable: int, plan: ModelPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = placed(plan, monkeypatch, usable=usable, frontends=1, tokenization_workers=0, batch_managers=1)

    assert (placement.name, counts(placement)) == ("compact", (1, 0, 0))
    assert placement.reason == f"--topology auto: one model on a CPU, and {usable} core(s) for everything"


@pytest.mark.parametrize(
    ("flags", "usable", "reason"),
    [
        ({"frontends": 2}, 2, "--frontends 2"),
        ({"tokenization_workers": 1}, 2, "--tokenization-workers 1"),
        ({"batch_managers": 2}, 2, "--batch-managers 2"),
        ({}, 5, "5 cores"),
        ({"topology": "spread"}, 2, "--topology spread"),
    ],
)
def test_spread_and_why(
    flags: dict[str, Any], usable: int, reason: str, plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = placed(plan, monkeypatch, usable=usable, **flags)

    assert placement.name == "spread"
    assert reason in placement.reason
    assert min(counts(placement)) >= 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"has_chat_template": True}, "one has a chat template"),
        ({"devices": ON_GPU}, "one runs on a GPU"),
        ({"folder": "static"}, "one is static"),
    ],
)
def test_models_that_get_spread(
    change: dict[str, Any], reason: str, plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "folder" in change:
        change = {"folder": dataclasses.replace(plan.folder, is_static=True)}
    placement = placed(dataclasses.replace(plan, **change), monkeypatch)

    assert placement.name == "spread"
    assert reason in placement.reason


def test_many_cores_get_more_processes(plan: ModelPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(placed(plan, monkeypatch, usable=16)) == (4, 8, 1)
    assert counts(placed(plan, monkeypatch, usable=16, tokenization_workers=0)) == (4, 0, 1)
    assert counts(placed(plan, monkeypatch, usable=16, topology="compact")) == (1, 0, 0)


@pytest.mark.parametrize("flag", ["frontends", "tokenization_workers", "batch_managers"])
def test_compact_beside_a_flag_that_asks_for_more_is_refused(
    flag: str, plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=f"^--topology compact has .*--{flag.replace('_', '-')} 2 asks for"):
        placed(plan, monkeypatch, topology="compact", **{flag: 2})


def test_compact_for_models_that_need_processes_of_their_own_is_refused(
    plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"^--topology compact .* one has a chat template"):
        placed(dataclasses.replace(plan, has_chat_template=True), monkeypatch, topology="compact")
    with pytest.raises(SettingsError, match=r"^--topology compact .* there are 2 models"):
        place(Settings(models=(MODEL,), topology="compact"), [plan, plan])


@pytest.mark.parametrize("change", [{"devices": ON_GPU}, {"folder": "static"}])
def test_compact_by_name_is_for_gpus_and_static_models_too(
    change: dict[str, Any], plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "folder" in change:
        change = {"folder": dataclasses.replace(plan.folder, is_static=True)}
    assert placed(dataclasses.replace(plan, **change), monkeypatch, topology="compact").is_compact
