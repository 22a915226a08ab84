"""A running server as a successor meets it, in this process."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor import takeover
from server.supervisor.listeners import Listeners, UnixPort, bind
from server.supervisor.ports import Ports
from server.supervisor.takeover import Handover, Predecessor, RunningServer, place
from tests.server_e2e.running import PATIENCE

_T = TypeVar("_T")


class Running:
    """A running server as a successor meets it."""

    def __init__(self, *, devices: tuple[str, ...] = ("cpu",), is_loaded: bool = True) -> None:
        self.listener = bind("127.0.0.1", 0, "--port")
        self.monitor = bind("127.0.0.1", 0, "--prometheus-port")
        self.http = Listeners([self.listener])
        self.taken: list[int] = []
        self.handover = Handover(
            self.path,
            RunningServer(
                http=self.http,
                monitor=Listeners([self.monitor]),
                devices=devices,
                pids=lambda: [os.getpid()],
                is_loaded=lambda: is_loaded,
            ),
            taken=self.taken.append,
        )
        self.handover.open()

    @property
    def path(self) -> Path:
        return place("127.0.0.1", self.port)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def settings(self, **others: Any) -> Settings:
        models = (ModelSettings(engine="fake"),)
        return Settings(port=self.port, takeover=True, models=models, **others)

    def close(self) -> None:
        self.handover.close()
        self.listener.close()
        self.monitor.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await test()

    asyncio.run(limited())


@contextlib.contextmanager
def running(*, devices: tuple[str, ...] = ("cpu",), is_loaded: bool = True) -> Iterator[Running]:
    server = Running(devices=devices, is_loaded=is_loaded)
    try:
        yield server
    finally:
        server.close()


def close(ports: Ports) -> None:
    ports.http.close()
    more: list[Listeners | UnixPort | Predecessor | None] = [ports.monitor, ports.uds, ports.predecessor]
    for one in more:
        if one is not None:
            one.close()


async def elsewhere(call: Callable[[], _T]) -> _T:
    """In a thread: a successor asks before it has an event loop."""
    return await asyncio.to_thread(call)


async def find(server: Running) -> Predecessor:
    found = await elsewhere(lambda: takeover.find(server.path))
    assert found is not None
    return found


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - conditions of all kinds
        await asyncio.sleep(0.005)
