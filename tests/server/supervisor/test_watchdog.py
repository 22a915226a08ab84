"""Busy and stuck differ: by the heartbeat, and by how long a batch should take."""

import asyncio
import types
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from server.supervisor import supervisor
from server.supervisor.child import ChildProcess
from server.supervisor.supervisor import Watchdog
from wire import control
from wire.page import Page

NOW = 1000.0


@dataclass
class FakeChild:
    """What the watchdog reads of a process, and whether it was killed."""

    last_beat: float = NOW
    is_ready: bool = True
    busy: dict[str, Any] | None = None
    pid: int | None = 1
    plan: Any = field(default_factory=lambda: types.SimpleNamespace(title="engine 0", model=0))
    is_dying: bool = False
    num_kills: int = 0
    excuse_silence = ChildProcess.excuse_silence

    def kill(self) -> None:
        """The kernel may hold on to it."""
        self.num_kills += 1
        self.is_dying = True


def a_watchdog(rate: float = 0.0) -> Watchdog:
    page = Page.create(num_frontends=1, num_managers=2, num_models=1)
    page.tokens_per_second[1, 0] = rate
    return Watchdog(page, heartbeat_timeout=10, batch_timeout=60)


def why(child: FakeChild, rate: float = 0.0) -> str | None:
    return a_watchdog(rate).why_stuck(cast(ChildProcess, child), NOW)


@pytest.mark.holds("When a process dies")
def test_silence() -> None:
    assert why(FakeChild(last_beat=NOW - 9.9)) is None
    assert "no heartbeat for 10.5 s" in str(why(FakeChild(last_beat=NOW - 10.5)))


def test_loading_may_hold_the_interpreter_for_long() -> None:
    assert why(FakeChild(last_beat=NOW - 100, is_ready=False)) is None
    assert why(FakeChild(last_beat=NOW - 121, is_ready=False)) is not None


@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize(
    ("seconds", "num_tokens", "streams", "rate", "is_stuck"),
    [
        (59, 100, 1, 0, False),
        (61, 100, 1, 0, True),
        (61, 100, 1, 1000, True),
        (61, 30_000, 1, 1000, False),  # should take 30 s, so 90 s are borne
        (89, 30_000, 1, 1000, False),
        (91, 30_000, 1, 1000, True),
        (89, 7500, 4, 1000, False),  # has a fourth of the rate
        (91, 7500, 4, 1000, True),
    ],
)
def test_one_batch(seconds: float, num_tokens: int, streams: int, rate: float, is_stuck: bool) -> None:
    busy = {"batch": 3, "tokens": num_tokens, "since": NOW - seconds, "streams": streams}
    assert (why(FakeChild(busy=busy), rate) is not None) is is_stuck


class Clock:
    """Time that passes only when the watchdog sleeps: as long as it asked for, or as long as it was stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, naps: list[float], children: list[FakeChild]) -> None:
        self.now = NOW
        self._naps = naps
        self._children = children
        monkeypatch.setattr(supervisor, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(supervisor, "asyncio", types.SimpleNamespace(sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        assert seconds == control.HEARTBEAT_SECONDS
        if not self._naps:
            raise asyncio.CancelledError
        self.now += self._naps.pop(0)
        self._children[0].last_beat = self.now  # the first is well


def watch(monkeypatch: pytest.MonkeyPatch, naps: list[float], *others: FakeChild) -> FakeChild:
    well = FakeChild()
    Clock(monkeypatch, naps, [well])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(a_watchdog().run(cast(list[ChildProcess], [well, *others])))
    return well


def test_a_silent_process_is_killed_once_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = FakeChild()

    well = watch(monkeypatch, [0.5] * 40, silent)

    assert (well.num_kills, silent.num_kills) == (0, 1)


def test_nobody_is_blamed_for_the_time_the_watchdog_itself_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = FakeChild()

    watch(monkeypatch, [0.5, 3600.0, *[0.5] * 18], silent)
    assert silent.num_kills == 0

    watch(monkeypatch, [0.5, 3600.0, *[0.5] * 22], silent)
    assert silent.num_kills == 1


def test_what_does_not_run_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = FakeChild(pid=None)

    watch(monkeypatch, [0.5] * 40, dead)

    assert dead.num_kills == 0
