"""How often other requests could run on the event loop while something is done."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from unittest import mock

from server.requests import limits


def turns_during(work: Coroutine[Any, Any, object]) -> int:
    """With time slices that are over at once, so that the number does not depend on the machine."""

    async def run() -> int:
        turns = 0

        async def another() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(another())
        await work
        task.cancel()
        return turns

    with mock.patch.object(limits, "SLICE_SECONDS", -1.0):
        return asyncio.run(run())
