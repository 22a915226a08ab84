"""Which processes there are: one engine a model and device, shared out among the batch managers, known to all."""

import importlib.metadata
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.machine import cuda_driver
from engine.machine.cuda_driver import Cuda, Gpu
from engine.store.model_source import resolve
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.child import Member, Plan
from server.supervisor.model_plan import plan_models
from server.supervisor.ports import bind
from server.supervisor.readiness import ROLES, Broadcast
from server.supervisor.socket_folder import RunFolder
from server.supervisor.topology import Door, House


def settings(*models: ModelSettings, **others: Any) -> Settings:
    return Settings(models=models or (model("one"), model("two")), **others)


def model(name: str, **others: Any) -> ModelSettings:
    return ModelSettings(served_model_name=name, **{"engine": "fake", **others})


def house_of(chosen: Settings, folder: RunFolder, http: socket.socket, *, cache_dir: str | None = None) -> House:
    return House(chosen, plan_models(chosen), folder=folder, door=Door(http=http), cache_dir=cache_dir)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    made = RunFolder()
    yield made
    made.remove()


@pytest.mark.parametrize(
    ("payload_limit", "open_payload"),
    [(64_000_000, 1 << 30), (100_000_000, 1_600_000_000), (1_000_000, 1 << 30), (1_000, 1 << 30)],
)
def test_limits_of_the_whole_server_are_shared_out_among_its_frontends(
    folder: RunFolder, payload_limit: int, open_payload: int
) -> None:
    with bind("127.0.0.1", 0, "--port") as http:
        chosen = settings(frontends=4, max_concurrent_requests=4096, payload_limit=payload_limit)
        frontends = by_role(house_of(chosen, folder, http).plans(), "frontend")

    assert len(frontends) == 4
    for frontend in frontends:
        assert frontend.spec["payload_limit"] == payload_limit  # one body's
        assert frontend.spec["open_payload_limit"] == open_payload // 4
        assert frontend.spec["max_concurrent_requests"] == 1024


@pytest.fixture
def minilm_folder() -> Path:
    return resolve("sentence-transformers/all-MiniLM-L6-v2").path


def by_role(plans: list[Plan], role: str) -> list[Plan]:
    return [plan for plan in plans if plan.role == role]


def test_every_model_has_an_engine_on_every_device(folder: RunFolder) -> None:
    with bind("127.0.0.1", 0, "--port") as http:
        chosen = settings(model("one", devices="a, b"), model("two", devices="c"), batch_managers=2, frontends=2)
        house = house_of(chosen, folder, http)
        plans = house.plans()

    engines = by_role(plans, "engine")
    assert [(e.model, e.spec["model"], e.spec["options"]["device"]) for e in engines] == [
        (0, "one", "a"),
        (0, "one", "b"),
        (1, "two", "c"),
    ]
    assert [plan.index for plan in engines] == [0, 1, 2]
    managers = by_role(plans, "batch manager")
    served = [engine["path"] for manager in managers for engine in manager.spec["engines"]]
    assert len(served) == len(set(served)) == 3  # each engine has exactly one batch manager
    assert all(manager.spec["engines"] and manager.spec["models"] == ["one", "two"] for manager in managers)
    for frontend in by_role(plans, "frontend"):
        assert [manager["models"] for manager in frontend.spec["managers"]] == [(0, 1), (0,)]
        assert frontend.spec["max_seqlens"] == [256, 256]
    (tokenizer,) = by_role(plans, "tokenizer")[:1]
    assert [spec["max_seqlen"] for spec in tokenizer.spec["tokenizers"]] == [256, 256]
    assert house.page.num_models == 2
    assert {plan.spec["log_level"] for plan in plans} == {"info"}


def test_each_model_has_settings_of_its_own(folder: RunFolder, minilm_folder: Path) -> None:
    chosen = settings(
        model("one", fake_dim=8, max_batch_tokens=100, max_input_length=16),
        model("two", engine="transformers", model_id=str(minilm_folder), dtype="bfloat16", quantization="none"),
    )
    with bind("127.0.0.1", 0, "--port") as http:
        plans = house_of(chosen, folder, http, cache_dir="/cache").plans()

    one, two = (plan.spec["options"] for plan in by_role(plans, "engine"))
    assert (one["dimensions"], one["max_num_tokens"], one["max_seqlen"]) == (8, 100, 16)
    assert (two["path"], two["dtype"], two["max_num_tokens"]) == (str(minilm_folder), "bfloat16", None)
    assert (two["quantization"], two["cache_dir"]) == ("none", "/cache")
    (manager,) = by_role(plans, "batch manager")
    assert manager.spec["policy"]["max_batch_tokens"] is None  # they differ, so each engine holds to its own
    (frontend,) = by_role(plans, "frontend")[:1]
    assert frontend.spec["max_seqlens"] == [16, 256]


@pytest.mark.parametrize(
    ("changes", "flag"),
    [({"devices": "cpu,"}, "--devices"), ({"max_input_length": 257}, "--max-input-length")],
)
def test_what_a_model_cannot_be(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{flag}"):
        plan_models(settings(model("one", **changes)))


@pytest.mark.parametrize(
    ("devices", "asked", "number"), [("a", None, 1), ("a,b,c", None, 1), ("a,b,c,d", None, 2), ("a,b,c,d", 4, 4)]
)
def test_batch_managers_share_the_engines_out(devices: str, asked: int | None, number: int, folder: RunFolder) -> None:
    chosen = settings(model("one", devices=devices), batch_managers=asked)
    with bind("127.0.0.1", 0, "--port") as http:
        house = house_of(chosen, folder, http)
        managers = by_role(house.plans(), "batch manager")
    assert len(managers) == house.page.num_managers == number
    assert sum(len(manager.spec["engines"]) for manager in managers) == len(devices.split(","))


def test_engines_on_the_cpu_share_its_cores(
    folder: RunFolder, minilm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setattr(cuda_driver, "find", lambda: Cuda((Gpu(0, "NVIDIA H200", (9, 0), 1 << 37),)))
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.11.0")
    models = [
        model(name, engine="transformers", model_id=str(minilm_folder), devices=devices)
        for name, devices in {"one": "cpu,cpu", "two": "cpu", "three": "cuda:0"}.items()
    ]
    with bind("127.0.0.1", 0, "--port") as http:
        engines = by_role(house_of(settings(*models), folder, http).plans(), "engine")
    options = [engine.spec["options"] for engine in engines]
    assert [one["num_threads"] for one in options if one["device"] == "cpu"] == [4, 4, 4]
    assert [one["device"] for one in options] == ["cpu", "cpu", "cpu", "cuda:0"]
    assert [one["memory_share"] for one in options] == [1.0] * 4


def test_a_padded_model_gets_a_line_in_the_log(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    chosen = settings(model("one"))
    with bind("127.0.0.1", 0, "--port") as http:
        house = house_of(chosen, folder, http)
        members: Any = [FakeMember(plan) for plan in house.plans()]
    broadcast = Broadcast(members, plan_models(chosen), page=house.page, limits={})

    with caplog.at_level("INFO", logger="embedline.supervisor"):
        broadcast.engine_loaded(members[0], {"info": {"name": "one", **LOADED}})
        assert "padded" not in caplog.text
        info = {"name": "one", **LOADED, "is_padded": True, "notes": ["padded: for a reason", "another"]}
        broadcast.engine_loaded(members[0], {"info": info})

    assert caplog.messages[-1] == "one is computed padded (padded: for a reason)"


LOADED = {"engine": "fake", "device": "cpu", "reason": "--engine fake", "max_seqlen": 256, "is_padded": False}


class FakeMember:
    """A member as far as the broadcast looks at one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.is_ready = True
        self.seen = 0
        self.states: list[Any] = []

    def send_state(self, number: int, state: Any) -> None:
        self.states.append((number, state))


def test_a_model_keeps_its_index_and_every_model_needs_an_engine(folder: RunFolder) -> None:
    chosen = settings(model("one", max_input_length=16), model("two"))
    plans = plan_models(chosen)
    with bind("127.0.0.1", 0, "--port") as http:
        house = house_of(chosen, folder, http)
        members = [FakeMember(plan) for plan in house.plans()]
    first, second = members[:2]
    frontend = members[-1]
    first.is_ready = False
    listed: list[Member] = members  # type: ignore[assignment]
    broadcast = Broadcast(listed, plans, page=house.page, limits={})

    broadcast.engine_loaded(listed[1], {"info": {"name": "two", **LOADED}})
    broadcast.send()

    number, state = frontend.states[-1]
    assert state["ready"] is False
    assert "one" in state["reason"]
    assert [entry["index"] for entry in state["models"]] == [1]
    assert state["names"] == ["one", "two"]

    first.is_ready = True
    broadcast.engine_loaded(listed[0], {"info": {"name": "one", **LOADED}})
    broadcast.send()

    number, state = frontend.states[-1]
    assert state["ready"] is True
    assert [entry["index"] for entry in state["models"]] == [0, 1]
    # an engine need not know of --max-input-length
    assert [entry["info"]["max_seqlen"] for entry in state["models"]] == [16, 256]
    house.page.engines_ready[:] = 1
    assert broadcast.why_not_ready() == "a frontend is yet to be told"
    frontend.seen = number
    assert broadcast.why_not_ready() is None
    house.page.engines_ready[0, 1] = 0
    assert broadcast.why_not_ready() == "no engine is ready"
    assert second.states == []  # only frontends are told


def test_a_frontend_that_is_about_to_accept_is_told_first(folder: RunFolder) -> None:
    """It asks what the house is like, then accepts, then is ready: meanwhile it turns nobody away either."""
    chosen = settings(model("one"), frontends=2)
    plans = plan_models(chosen)
    with bind("127.0.0.1", 0, "--port") as http:
        house = house_of(chosen, folder, http)
        members: Any = [FakeMember(plan) for plan in house.plans()]
    told, late = members[-2:]
    late.is_ready = False
    house.page.engines_ready[:] = 1
    broadcast = Broadcast(members, plans, page=house.page, limits={})
    answer = broadcast.tell(late)
    assert answer["models"] == []

    broadcast.engine_loaded(members[0], {"info": {"name": "one", **LOADED}})
    broadcast.send()

    told.seen = told.states[-1][0]
    assert broadcast.why_not_ready() == "a frontend is yet to be told"
    late.seen = late.states[-1][0]
    assert broadcast.why_not_ready() is None
    late.seen = 0  # started again: whatever it asks from now on, it is told that all is ready
    assert broadcast.why_not_ready() is None
    assert broadcast.tell(late)["ready"]
    assert broadcast.why_not_ready() is None


@pytest.mark.parametrize("role", ROLES)
def test_each_kind_of_process_is_needed(role: str, folder: RunFolder) -> None:
    """One of a kind is enough."""
    chosen = settings(model("one", devices="a,b"), tokenization_workers=2, batch_managers=2, frontends=2)
    with bind("127.0.0.1", 0, "--port") as http:
        house = house_of(chosen, folder, http)
        members = [FakeMember(plan) for plan in house.plans()]
    house.page.engines_ready[:] = 1
    broadcast = Broadcast(members, plan_models(chosen), page=house.page, limits={})  # type: ignore[arg-type]
    first, second = [member for member in members if member.plan.role == role]

    reasons = []
    for member in (first, second):
        member.is_ready = False
        reasons.append(broadcast.why_not_ready())

    assert reasons == [None, f"no {role} is ready"]
