"""Room for the rows of several parts of one request, taken as one."""

import asyncio

from server.requests.admission.room import SMALL_BYTES, Held, Room


class JointRoom:
    """Waits until each part has said how many bytes it needs, and takes room for all of them.

    If each part took its own, requests could hold some room each and wait for more until all of them are refused. An
    error of one part has to end the others. Must be made inside a running event loop.
    """

    def __init__(self, num_parts: int) -> None:
        self.held: Held | None = None  # None = no room is needed, or none was taken yet
        self._num_silent = num_parts
        self._num_bytes = 0
        self._room: Room | None = None  # the largest that a part has named
        self._all_have_said = asyncio.Event()
        self._is_taken = asyncio.Event()

    async def take(self, room: Room, num_bytes: int, key: str) -> None:
        """One part needs so many bytes; it says so once. Returns when there is room for all. Raises NotReady."""
        is_first = self._room is None
        if self._room is None or room.max_bytes > self._room.max_bytes:
            self._room = room
        self._say(num_bytes)
        if not is_first:
            await self._is_taken.wait()
            return
        await self._all_have_said.wait()
        if self._num_bytes > SMALL_BYTES:
            self.held = await self._room.take(self._num_bytes, key)
        self._is_taken.set()

    def needs_none(self) -> None:
        """One part has ended without asking."""
        self._say(0)

    def _say(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._num_silent -= 1
        if not self._num_silent:
            self._all_have_said.set()
