"""Servers that tests of the HTTP server share."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.server.http.bare import Bare
from tests.server.http.running import App, Running


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """On a port. Tests that have it are marked `both_loops`."""
    started = Running()
    await started.server.start()
    yield started
    started.app.gate.set()
    await started.server.stop(10)


@pytest.fixture
def app() -> Iterator[App]:
    """Of `server`; what still waits in the end is let go."""
    made = App()
    yield made
    made.gate.set()


@pytest.fixture
async def server(app: App) -> AsyncIterator[Bare]:
    """Without sockets."""
    made = Bare(app)
    yield made
    app.gate.set()
    made.close()
