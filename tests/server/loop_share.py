"""How often others get their turn on the event loop while something is being done."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def turns_during(work: Coroutine[Any, Any, object]) -> int:
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

    return asyncio.run(run())
