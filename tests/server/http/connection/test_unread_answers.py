"""Answers whose clients do not read them: their bytes and those of the rows are counted, and have a limit."""

import asyncio
import json

import numpy as np
import pytest

from batch_manager.messages import RequestRefusal, RequestRefused
from server.http.body import WRITE_BUFFER_BYTES
from server.requests.row_memory import RowMemory
from tests.server.edge import Edge, ready_state
from tests.server.http.bare import Bare, Connected, turns
from tests.server.http.running import POST
from wire.control import Json
from wire.vocabulary import RequestClass

LIMIT = 1_200_000  # bytes of queries: a quarter of the room
OPENAI, TEI = b"v1/embeddings", b"embed"


def edge() -> Edge:
    """Each answer of 4 items has about 500,000 bytes as JSON."""
    made = Edge(max_held_bytes=4 * LIMIT, max_wait=0)
    made.managers.rows = np.random.default_rng(7).standard_normal((4, 10_000), np.float32)
    return made


def request(path: bytes, num_items: int = 4) -> bytes:
    field = "inputs" if path == TEI else "input"
    body = json.dumps({field: list("abcd")[:num_items]}).encode()
    return POST % (path, len(body)) + body


async def unread(server: Bare, sent: bytes) -> Connected:
    client = server.connect()
    client.transport.is_read = False
    await client.send(sent)
    await turns(20)
    return client


@pytest.mark.holds("Limits", "Clients that do not read their answers are disconnected")
@pytest.mark.parametrize("path", [OPENAI, TEI])
async def test_answers_that_nobody_reads_have_a_limit(path: bytes) -> None:
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
    assert served.admission.row_memory_of(RequestClass.INTERACTIVE).num_held_bytes == 0
    server.close()


@pytest.mark.holds("Limits")
async def test_small_answers_and_the_only_large_one_are_never_refused() -> None:
    served = edge()
    served.admission._row_memory[RequestClass.INTERACTIVE] = RowMemory(1000, max_wait=0)
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


@pytest.mark.holds("Limits")
async def test_rows_are_not_computed_until_there_is_room() -> None:
    """Room is taken before a request is submitted; who leaves while it waits is never submitted."""
    served = Edge(max_held_bytes=1, loaded=state_of_large_rows())
    served.managers.gate = asyncio.Event()
    server = Bare(served.app)
    first, leaving, last = [await unread(server, request(OPENAI)) for _ in range(3)]
    assert len(served.managers.submitted) == 1
    leaving.transport.abort()
    await turns(20)
    assert len(served.managers.submitted) == 1
    first.transport.abort()
    await turns(20)
    assert len(served.managers.submitted) == 2
    last.transport.is_read = True
    served.managers.gate.set()
    await turns(20)
    assert last.statuses() == [200]
    await turns()
    assert served.admission.row_memory_of(RequestClass.INTERACTIVE).num_held_bytes == 0
    server.close()


@pytest.mark.holds("Limits", "Back-pressure")
async def test_who_waits_for_room_keeps_out_nobody_who_needs_none() -> None:
    """While slow readers hold the room: what waits for it goes to no engine."""
    served = Edge(max_held_bytes=1, loaded=state_of_large_rows())
    served.page.tokens_per_second[:] = 1  # a second for a token; the budget is one second
    server = Bare(served.app)
    served.managers.rows = np.random.default_rng(7).standard_normal((4, 10_000), np.float32)
    slow = await unread(server, request(OPENAI))
    assert slow.transport.num_unread > 200_000
    served.managers.rows = None
    waiting = await unread(server, request(OPENAI))
    assert served.page.kept_back_tokens.sum() == 4
    statuses = []
    for num_items in (1, 4):
        client = server.connect()
        await client.send(request(OPENAI, num_items))
        await turns(20)
        statuses.append(client.statuses())
    assert statuses == [[200], [429]]
    slow.transport.abort()
    await turns(20)
    waiting.transport.abort()
    await turns(20)
    assert not served.page.kept_back_tokens.any()
    assert not served.page.admitted_tokens.any()
    server.close()


@pytest.mark.holds("Limits")
async def test_a_request_that_fails_gives_its_room_back() -> None:
    served = Edge(max_held_bytes=1, loaded=state_of_large_rows())
    served.managers.error = RequestRefused(RequestRefusal.ENGINE_FAILED)
    server = Bare(served.app)
    for _ in range(2):
        client = server.connect()
        await client.send(request(OPENAI))
        await turns(20)
        assert client.statuses() == [500]
        assert served.admission.row_memory_of(RequestClass.INTERACTIVE).num_held_bytes == 0
    assert len(served.managers.submitted) == 2
    server.close()


def state_of_large_rows() -> Json:
    state = ready_state()
    state["models"][0]["info"] |= {"dimensions": 10_000}
    return state
