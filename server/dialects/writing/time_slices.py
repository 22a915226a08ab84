"""Other requests' turns, for what writes many small things one after the other."""

import asyncio


class Turns:
    """Counts what is written, and lets others have the event loop every so often."""

    def __init__(self, every: int) -> None:
        """`every` is of what takes about 1 ms."""
        self._every = every
        self._left = every

    async def wrote(self, number: int) -> None:
        """So much since the last call."""
        self._left -= number
        if self._left <= 0:
            self._left = self._every
            await asyncio.sleep(0)
