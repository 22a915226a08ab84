"""A process that carries out one attack until its standard input ends, and then prints what came of it as JSON.

    python -m benchmarks.attacks.attacker NUMBER PORT PREPARED

NUMBER is the attack's place among all, PREPARED what it has prepared. It gives way to all others on the machine.
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.attacks.attack import PREPARED, Attack
from benchmarks.attacks.catalogue import ATTACKS
from benchmarks.attacks.keyed import KEYED_ATTACKS
from benchmarks.measuring.servers import ROOT

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_STATUS_BYTES = 13
_READ_BYTES = 64 * 1024
_SLOW_BYTES = 4096  # that a slow client takes before it is read
_NICENESS = 10
_ALL = (*ATTACKS, *KEYED_ATTACKS)


@dataclass(slots=True)
class Seen:
    """What came of an attack. `outcomes` counts the statuses of answers, and how connections ended."""

    connections: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Seen") -> None:
        """Another round of the same attack."""
        self.connections += other.connections
        self.sent_bytes += other.sent_bytes
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds
        self.outcomes += other.outcomes


class Visit(NamedTuple):
    """One connection."""

    attack: Attack
    seen: Seen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self) -> None:
        """All that the attack sends."""
        for piece in self.attack.pieces():
            self.writer.write(piece)
            await self.writer.drain()
            self.seen.sent_bytes += len(piece)
            await asyncio.sleep(self.attack.pause)

    async def read(self) -> None:
        """Until enough answers have come, or the server closes."""
        if not self.attack.bytes_per_second:
            self.writer.transport.pause_reading()  # type: ignore[attr-defined]  # streams name the base class alone
            await asyncio.Event().wait()
        rest, num_answers = b"", 0
        while num_answers < self.attack.answers:
            received = await self._next()
            if not received:
                self.seen.outcomes["closed by the server"] += 1
                return
            rest += received
            end = 0
            for found in _STATUS.finditer(rest):
                self.seen.outcomes[found[1].decode()] += 1
                num_answers += 1
                end = found.end()
            rest = rest[max(end, len(rest) - _STATUS_BYTES + 1) :]

    async def _next(self) -> bytes:
        if self.attack.bytes_per_second < math.inf:
            await asyncio.sleep(1.0)
            return await self.reader.read(int(self.attack.bytes_per_second))
        return await self.reader.read(_READ_BYTES)


async def _visit(attack: Attack, port: int, seen: Seen) -> None:
    """One connection, from its beginning to its end."""
    connection = socket.socket()
    connection.setblocking(False)
    kept = _READ_BYTES
    if attack.bytes_per_second < math.inf:
        kept = _SLOW_BYTES
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kept)
    try:
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=kept)
    except OSError as error:
        seen.outcomes[type(error).__name__] += 1
        connection.close()
        return
    seen.connections += 1
    visit = Visit(attack, seen, reader, writer)
    sending = asyncio.create_task(visit.send())
    try:
        await visit.read()
    except ConnectionError as error:
        seen.outcomes[type(error).__name__] += 1
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)  # the server may have closed while it sent
        writer.transport.abort()


async def _again_and_again(attack: Attack, port: int, seen: Seen, *, number: int) -> None:
    """One connection after another. Those of an attack do not begin all at once."""
    loop = asyncio.get_running_loop()
    due = loop.time() + number * min(attack.every, 1.0) / attack.connections
    while True:
        await asyncio.sleep(due - loop.time())
        await _visit(attack, port, seen)
        due = max(loop.time(), due + attack.every)


async def _attack(attack: Attack, port: int) -> Seen:
    """Until standard input ends."""
    seen, began = Seen(), time.perf_counter()
    tasks = [
        asyncio.create_task(_again_and_again(attack, port, seen, number=number)) for number in range(attack.connections)
    ]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    seen.seconds = time.perf_counter() - began
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    times = os.times()
    seen.cpu_seconds = times.user + times.system
    if errors := [error for error in ended if not isinstance(error, asyncio.CancelledError)]:
        raise ExceptionGroup("the attacker failed", [error for error in errors if isinstance(error, Exception)])
    return seen


@contextlib.contextmanager
def attacking(attack: Attack, port: int, seen: Seen) -> Iterator[None]:
    """The attack goes on during the block, in a process of its own; then `seen` knows what came of it."""
    arguments = (str(_ALL.index(attack)), str(port), attack.prepare(port))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "benchmarks.attacks.attacker", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "the attacker did not start"
            yield
        finally:
            said, _ = process.communicate()
    assert process.returncode == 0, "the attacker failed"
    found = json.loads(said)
    seen.add(Seen(**{**found, "outcomes": Counter(found["outcomes"])}))


def main() -> None:
    os.nice(_NICENESS)
    number, port, prepared = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
    attack = _ALL[number]
    pieces = attack.pieces
    attack = dataclasses.replace(attack, pieces=lambda: (one.replace(PREPARED, prepared) for one in pieces()))
    seen = asyncio.run(_attack(attack, port))
    print(json.dumps({one.name: getattr(seen, one.name) for one in dataclasses.fields(seen)}))


if __name__ == "__main__":
    main()
