"""Looks up hosts in threads of its own.

A name server that never answers holds a lookup for up to a minute, and nothing can cut it. The loop's own lookups share
a few threads, so some such names would hold up all others; and the end of the process would wait for them.
"""

import asyncio
import socket
import threading

_MAX_LOOKUPS = 128  # at a time: several times as many as are waited for


class Resolver:
    """`most` bounds the lookups that have not ended, also those that nobody waits for any more."""

    def __init__(self, most: int = _MAX_LOOKUPS) -> None:
        self._free = asyncio.Semaphore(most)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Each once, in the system's order. Raises OSError, UnicodeError."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[str]] = loop.create_future()

        def ended(outcome: list[str] | OSError | UnicodeError) -> None:
            self._free.release()
            if future.done():  # its caller waits no more
                return
            if isinstance(outcome, list):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        def look_up() -> None:
            outcome = _look_up(host, port)
            try:
                loop.call_soon_threadsafe(ended, outcome)
            except RuntimeError:  # the loop is closed, and nobody waits any more
                return

        threading.Thread(target=look_up, name="webhook-lookup", daemon=True).start()
        return await future


def _look_up(host: str, port: int) -> list[str] | OSError | UnicodeError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
