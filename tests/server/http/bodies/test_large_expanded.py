"""Compressed bodies that expand to much: one is in memory at a time, and the others wait in order."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator

import pytest

from server.dialects.reading.json_body import check_large
from server.http import body
from server.http.body import RequestBodies
from server.requests.errors import Overloaded
from tests.server.edge import Edge, call

MIB = 1 << 20
PIECE = MIB // 4
NUM_BODIES = 6


class Expansions:
    """Counts the bytes that are expanded and the bodies that are whole."""

    def __init__(self) -> None:
        self.reader = RequestBodies(max_bytes=8 * MIB, max_total_bytes=1000 * MIB)
        self.num_bytes = self.most_bytes = 0
        self.order: list[int] = []

    async def pieces(self, num_mib: int) -> AsyncIterator[bytes]:
        for _ in range(num_mib * MIB // PIECE):
            self.num_bytes += PIECE
            self.most_bytes = max(self.most_bytes, self.num_bytes)
            yield bytes(PIECE)
            await asyncio.sleep(0)

    async def expand(self, number: int, num_mib: int = 8) -> None:
        async with self.reader.expanded(b"", self.pieces(num_mib)) as whole:
            assert len(whole) == num_mib * MIB
            self.order.append(number)
            await asyncio.sleep(0)
            self.num_bytes -= len(whole)

    def is_given_back(self) -> bool:
        return not self.reader._open.num_bytes and not self.reader._turn.locked()


@pytest.mark.holds("Limits")
async def test_large_bodies_are_expanded_one_at_a_time_and_in_order() -> None:
    bodies = Expansions()
    await asyncio.gather(*(bodies.expand(number) for number in range(NUM_BODIES)))
    assert bodies.order == list(range(NUM_BODIES))
    assert bodies.most_bytes <= 8 * MIB + (NUM_BODIES - 1) * (MIB + PIECE)
    assert bodies.is_given_back()


async def test_small_bodies_wait_for_no_large_one() -> None:
    bodies = Expansions()
    await bodies.reader._turn.acquire()
    await bodies.expand(0, num_mib=1)
    assert bodies.order == [0]


@pytest.mark.holds("Limits")
async def test_who_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_TURN_SECONDS", 0.0)
    bodies = Expansions()
    await bodies.reader._turn.acquire()
    with pytest.raises(Overloaded) as refused:
        await bodies.expand(0)
    assert refused.value.retry_after == 1.0
    bodies.reader._turn.release()
    assert bodies.is_given_back()


async def test_who_leaves_or_fails_gives_its_turn_to_the_next() -> None:
    bodies = Expansions()
    tasks = [asyncio.create_task(bodies.expand(number)) for number in range(4)]
    for _ in range(6):  # one piece a turn; the fifth is over a MiB
        await asyncio.sleep(0)
    assert bodies.reader._turn.locked()
    tasks[0].cancel()  # has the turn
    tasks[2].cancel()  # waits for it
    with pytest.raises(ZeroDivisionError):
        async with bodies.reader.expanded(b"", bodies.pieces(2)):
            raise ZeroDivisionError
    await asyncio.gather(*tasks, return_exceptions=True)
    assert bodies.order == [1, 3]
    assert bodies.is_given_back()


@pytest.mark.holds("Limits")
async def test_the_next_one_is_expanded_when_the_one_before_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = zlib.compress(json.dumps({"input": ["ab"]}).encode()[:-1] + b" " * 3 * MIB + b"}", wbits=31)
    num_open = most_open = 0

    async def counted(given: bytes) -> None:
        nonlocal num_open, most_open
        num_open += 1
        most_open = max(most_open, num_open)
        await check_large(given)
        await asyncio.sleep(0)
        num_open -= 1

    monkeypatch.setattr("server.http.request.check_large", counted)
    edge = Edge(max_bytes=4 * MIB)
    headers = {"content-encoding": "gzip"}
    calls = (call(edge.app, "POST", "/v1/embeddings", sent, headers) for _ in range(NUM_BODIES))
    assert [called.status for called in await asyncio.gather(*calls)] == [200] * NUM_BODIES
    assert not edge.shared.bodies._turn.locked()
    assert most_open == 1
