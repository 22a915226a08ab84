"""Wakes the one who waits for something new in a store. Nothing that came after `clear` is missed."""

import asyncio


class Signal:
    """Clear it, look, and wait only if there was nothing."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def clear(self) -> None:
        self._event.clear()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None) -> None:
        """Return at once if it was set since it was cleared, else when it is, or after so many seconds if any."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
