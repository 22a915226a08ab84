"""Answers whose clients do not read them: their bytes are counted, and there is a limit on them."""

import asyncio
import json

import numpy as np
import pytest

from server.http.answers import MAX_UNREAD_BYTES, WRITE_BUFFER_BYTES, Answers
from server.requests.errors import NotReady
from tests.server.edge import Edge
from tests.server.http.bare import Bare, Connected, turns
from tests.server.http.running import POST

LIMIT = 1_200_000
OPENAI, TEI = b"v1/embeddings", b"embed"


def edge() -> Edge:
    """Each answer of 4 items has about 500,000 bytes as JSON."""
    made = Edge(max_unread_bytes=LIMIT)
    made.managers.rows = np.random.default_rng(7).standard_normal((4, 10_000), np.float32)
    return made


def request(path: bytes, num_items: int = 4) -> bytes:
    field = "inputs" if path == TEI else "input"
    body = json.dumps({field: ["a"] * num_items}).encode()
    return POST % (path, len(body)) + body


async def unread(server: Bare, sent: bytes) -> Connected:
    client = server.connect()
    client.transport.is_read = False
    await client.send(sent)
    await turns(20)
    return client


@pytest.mark.holds("Limits", "Clients that do not read their answers are disconnected")
@pytest.mark.parametrize("path", [OPENAI, TEI])
def test_answers_that_nobody_reads_have_a_limit(path: bytes) -> None:
    async def test() -> None:
        served = edge()
        server = Bare(served.app)
        clients = [await unread(server, request(path)) for _ in range(10)]
        held = [client.transport.num_unread for client in clients]
        assert held[0] > 200_000
        assert held[1] > 200_000
        assert sum(held) <= LIMIT + 10 * WRITE_BUFFER_BYTES

        reader = server.connect()
        await reader.send(request(path))
        await turns(20)
        assert reader.statuses() == [503]
        assert b"retry-after: 1" in reader.transport.written
        assert ["embedline_rejected_total", "unread_answers", 9] in served.metrics.drain()["counts"]

        clients[0].transport.abort()  # cut off because it did not read, or it left
        await turns(20)
        await reader.send(request(path))
        await turns(20)
        assert reader.statuses() == [503, 200]
        for client in clients:
            client.transport.abort()
        await turns()
        assert served.app._answers._num_unread_bytes == 0
        server.close()

    asyncio.run(test())


@pytest.mark.holds("Limits")
def test_small_answers_and_the_only_large_one_are_never_refused() -> None:
    async def test() -> None:
        served = edge()
        served.app._answers = Answers(1000)
        server = Bare(served.app)
        large = await unread(server, request(OPENAI))
        assert large.transport.num_unread > 200_000
        served.managers.rows = None
        for _ in range(3):
            client = server.connect()
            await client.send(request(OPENAI, 1))
            await turns(20)
            assert client.statuses() == [200]
        large.transport.abort()
        await turns()
        server.close()

    asyncio.run(test())


def test_the_limit_counts_what_is_held() -> None:
    answers = Answers()
    answers.check(10 * MAX_UNREAD_BYTES)
    answers._num_unread_bytes = MAX_UNREAD_BYTES
    answers.check(WRITE_BUFFER_BYTES)
    with pytest.raises(NotReady):
        answers.check(WRITE_BUFFER_BYTES + 1)
