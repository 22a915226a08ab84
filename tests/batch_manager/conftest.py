"""Runs a test on either event loop that the batch manager's process may have."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """`asyncio.run`, on that loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run_it(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test)

    return run_it
