"""Which processes there are: one engine a model and device, shared out among the batch managers, known to all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.bind import bind
from server.broadcast import Broadcast
from server.house import House
from server.member import Member, Plan
from server.model_plan import ModelPlan, plan_model
from server.run_folder import RunFolder
from server.settings import Settings


def settings(**others: Any) -> Settings:
    return Settings(engine="fake", **others)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    made = RunFolder()
    yield made
    made.remove()


def models(*names: str) -> list[ModelPlan]:
    return [plan_model(settings(served_model_name=name)) for name in names]


def by_role(plans: list[Plan], role: str) -> list[Plan]:
    return [plan for plan in plans if plan.role == role]


def test_every_model_has_an_engine_on_every_device(folder: RunFolder) -> None:
    with bind("127.0.0.1", 0, "--port") as http:
        house = House(settings(devices="a, b,c", batch_managers=2, frontends=2), models("one", "two"), folder, http)
        plans = house.plans()

    engines = by_role(plans, "engine")
    assert [(e.model, e.spec["model"], e.spec["options"]["device"]) for e in engines] == [
        (index, name, device) for index, name in enumerate(("one", "two")) for device in "abc"
    ]
    assert [plan.index for plan in engines] == list(range(6))
    managers = by_role(plans, "batch manager")
    served = [engine["path"] for manager in managers for engine in manager.spec["engines"]]
    assert len(served) == len(set(served)) == 6  # each engine has exactly one batch manager
    assert all(manager.spec["engines"] and manager.spec["models"] == ["one", "two"] for manager in managers)
    for frontend in by_role(plans, "frontend"):
        assert [manager["models"] for manager in frontend.spec["managers"]] == [[0, 1], [0, 1]]
        assert frontend.spec["max_seqlens"] == [256, 256]
    (tokenizer,) = by_role(plans, "tokenizer")[:1]
    assert [spec["max_seqlen"] for spec in tokenizer.spec["tokenizers"]] == [256, 256]
    assert house.page.num_models == 2


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
    plans = models("one", "two")
    with bind("127.0.0.1", 0, "--port") as http:
        house = House(settings(), plans, folder, http)
        members = [FakeMember(plan) for plan in house.plans()]
    first, second = members[:2]
    frontend = members[-1]
    first.is_ready = False
    listed: list[Member] = members  # type: ignore[assignment]
    broadcast = Broadcast(listed, plans, page=house.page, limits={})

    broadcast.engine_loaded(listed[1], {"info": {"name": "two", "device": "cpu"}})
    broadcast.send()

    number, state = frontend.states[-1]
    assert state["ready"] is False
    assert "one" in state["reason"]
    assert [entry["index"] for entry in state["models"]] == [1]

    first.is_ready = True
    broadcast.engine_loaded(listed[0], {"info": {"name": "one", "device": "cpu"}})
    broadcast.send()

    number, state = frontend.states[-1]
    assert state["ready"] is True
    assert [entry["index"] for entry in state["models"]] == [0, 1]
    house.page.engines_ready[:] = 1
    assert broadcast.why_not_ready() == "a frontend is yet to be told"
    frontend.seen = number
    assert broadcast.why_not_ready() is None
    house.page.engines_ready[0, 1] = 0
    assert broadcast.why_not_ready() == "no engine is ready"
    assert second.states == []  # only frontends are told
