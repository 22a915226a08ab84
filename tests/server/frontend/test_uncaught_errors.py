"""An error that nobody catches ends a frontend's process where a part inside it may be broken then, and only there."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batch_manager.worker import Manager
from server.frontend.inside import MODULES
from tests.server.frontend.compact import compact_frontend
from wire import child

pytestmark = [pytest.mark.both_loops, pytest.mark.holds("When a process dies")]


LONG = "a ferry " * 500  # so that it waits for its turn


class Planted(Exception):
    """The error."""


def fail(*_: object, **__: object) -> None:
    raise Planted


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set where the process would end. The loop of the test treats errors as a frontend's does."""
    ended = asyncio.Event()
    monkeypatch.setattr("os._exit", lambda code: ended.set())
    return ended


def watch_errors() -> None:
    asyncio.get_running_loop().set_exception_handler(partial(child._exit_on_error, MODULES))


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("tokenizer_pool.worker.PieceQueue.push", id="local frame of the tokenizer"),
        pytest.param("tokenizer_pool.worker._do", id="tick of the tokenizer"),
        pytest.param("batch_manager.in_flight.InFlight.add", id="local frame of the batch manager"),
        pytest.param("batch_manager.scheduling.scheduler.Scheduler.dispatch", id="tick of the batch manager"),
        pytest.param("batch_manager.scheduling.scheduler.Scheduler.batch_done", id="frame of an engine"),
        pytest.param("batch_manager.scheduling.scheduler.Scheduler.engine_lost", id="loss of an engine"),
    ],
)
async def test_an_error_in_a_part_ends_the_process(
    broken: str, exits: asyncio.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_errors()
    async with compact_frontend(tmp_path, shutdown_timeout=0.0) as frontend:
        frontend.engine.is_automatic = True
        assert (await frontend.embed("a harbour"))[0] == 200
        with monkeypatch.context() as patch:
            patch.setattr(broken, fail)
            asked = asyncio.create_task(frontend.embed(LONG))
            if "engine_lost" in broken:
                frontend.engine.cut()
            await exits.wait()
        asked.cancel()


async def test_an_error_in_a_timer_of_the_batch_manager_ends_the_process(
    exits: asyncio.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers: list[Manager] = []

    class Noted(Manager):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            managers.append(self)

    monkeypatch.setattr("batch_manager.worker.Manager", Noted)
    watch_errors()
    async with compact_frontend(tmp_path):
        with monkeypatch.context() as patch:
            patch.setattr(managers[0]._scheduler, "dispatch", fail)
            managers[0]._set_timer(0.0, 0.0)
            await exits.wait()


def in_a_callback(patch: pytest.MonkeyPatch, broken: Callable[..., None]) -> None:
    asyncio.get_running_loop().call_soon(broken)


def in_a_route(patch: pytest.MonkeyPatch, broken: Callable[..., None]) -> None:
    patch.setattr("server.requests.pipeline.Pipeline.embed", broken)


def in_an_answer_of_the_batch_manager(patch: pytest.MonkeyPatch, broken: Callable[..., None]) -> None:
    patch.setattr("batch_manager.client._decode", broken)


@pytest.mark.parametrize("plant", [in_a_callback, in_a_route, in_an_answer_of_the_batch_manager])
async def test_an_error_in_the_frontends_own_code_ends_nothing(
    plant: Callable[..., None], exits: asyncio.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_errors()
    has_failed = asyncio.Event()

    def broken(*_: object, **__: object) -> None:
        has_failed.set()
        raise Planted

    async with compact_frontend(tmp_path, shutdown_timeout=0.0) as frontend:
        frontend.engine.is_automatic = True
        with monkeypatch.context() as patch:
            plant(patch, broken)
            asked = asyncio.create_task(frontend.embed("a ferry"))
            await has_failed.wait()
            await asyncio.sleep(0)  # the error has reached the loop
        assert (await frontend.embed("a harbour"))[0] == 200
        assert not exits.is_set()
        asked.cancel()
