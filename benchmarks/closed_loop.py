"""A closed-loop HTTP client that costs little: prepared bytes out, answers counted by their length, on uvloop.

Each of C connections sends its next request when the answer to the last is in. Latency is from send to last byte.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import uvloop

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length: "


def post(path: str, body: bytes, *, headers: Sequence[str] = ()) -> bytes:
    """A whole HTTP/1.1 request."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + _END_OF_HEAD + body


@dataclass
class Outcome:
    """What a run gave."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # seconds, of the requests answered with 200
    num_failed: int = 0

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class _Client(asyncio.Protocol):
    """One connection. The answer's length is read from its head, its body is not looked at."""

    def __init__(self, requests: Sequence[bytes], outcome: Outcome, deadline: float) -> None:
        self._requests = requests
        self._outcome = outcome
        self._deadline = deadline
        self._turn = 0
        self._missing = 0  # bytes of the answer still to come; 0 = its head is
        self._head = b""
        self._is_good = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no common class
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            self._head += data
            end = self._head.find(_END_OF_HEAD)
            if end < 0:
                return
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            at = head.index(_LENGTH) + len(_LENGTH)
            self._missing = int(head[at:].split(b"\r", 1)[0])
            self._is_good = head.startswith(b"http/1.1 200")
        self._missing -= len(data)
        if not self._missing:
            self._head = b""
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._outcome.num_failed += 1
            self.done.set_result(None)

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._requests[self._turn % len(self._requests)])
        self._turn += 1

    def _finish(self) -> None:
        now = time.perf_counter()
        if self._is_good:
            self._outcome.latencies.append(now - self._sent)
        else:
            self._outcome.num_failed += 1
        if now < self._deadline:
            self._send()
        else:
            self.done.set_result(None)
            self._transport.close()


async def _drive(port: int, requests: Sequence[bytes], *, num_connections: int, seconds: float) -> Outcome:
    outcome = Outcome()
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    clients = []
    for number in range(num_connections):
        mine = [*requests[number % len(requests) :], *requests[: number % len(requests)]]
        _, client = await loop.create_connection(
            lambda mine=mine: _Client(mine, outcome, began + seconds),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    outcome.seconds = time.perf_counter() - began
    return outcome


def drive(port: int, requests: Sequence[bytes], *, num_connections: int, seconds: float) -> Outcome:
    """Send `requests` in turn over so many connections for so long."""
    return uvloop.run(_drive(port, requests, num_connections=num_connections, seconds=seconds))
