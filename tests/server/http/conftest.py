"""What tests of the HTTP server share."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.server.http.running import Running, Test
from tests.server_e2e.running import PATIENCE


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Runs a test against a running server."""

    async def start_and_run(test: Test) -> None:
        async with asyncio.timeout(PATIENCE):
            running = Running()
            await running.server.start()
            try:
                await test(running)
            finally:
                running.app.gate.set()
                await running.server.stop(10)

    def run_it(test: Test) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(start_and_run(test))

    return run_it
