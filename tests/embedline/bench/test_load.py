"""Requests against a scripted server: what is counted, what fails and how, what goes over the wire."""

import asyncio

import pytest

from embedline.bench.connection import ConnectionLost
from embedline.bench.load import NOT_SENT, Generator, Load, Phase, Summary, summarize
from embedline.bench.options import Target
from embedline.bench.requests import HttpRequest, post
from tests.embedline.bench.scripted import Server, answer, scripted

SLOW_DOWN = answer(b'{"error":{"message":"slow\x1b[31m down"}}', status=b"429 Too Many Requests")


def request(server: Server, text: str = "x") -> HttpRequest:
    return HttpRequest(post(server.target, "/v1/embeddings", text.encode()), 2)


async def run(server: Server, load: Load, *, patience: float = 30.0) -> tuple[Phase, Summary]:
    generator = Generator(server.target, [request(server, "a"), request(server, "b")], patience=patience)
    phase = Phase(load)
    try:
        await generator.run(phase)
    finally:
        generator.close()
    return phase, summarize(phase)


async def test_a_closed_loop_counts_requests_texts_and_tokens() -> None:
    async with scripted() as server:
        _, summary = await run(server, Load(concurrency=3, num_requests=20))
    assert (summary.num_requests, summary.num_texts, summary.failures) == (20, 40, {})
    assert len(summary.latencies_ms) == 20
    assert summary.tokens_per_second == pytest.approx(7 * summary.requests_per_second)
    assert sorted(server.bodies) == [b"a"] * 10 + [b"b"] * 10
    assert server.num_connections == 3


async def test_a_closed_loop_keeps_so_many_in_flight_and_no_more() -> None:
    gate = asyncio.Event()
    async with scripted(gate) as server:
        running = asyncio.create_task(run(server, Load(concurrency=5, num_requests=8)))
        await server.has_seen(5)
        gate.set()
        await running
    assert (server.most_in_flight, len(server.bodies)) == (5, 8)


async def test_a_closed_loop_ends_with_its_time() -> None:
    async with scripted() as server:
        phase, _ = await run(server, Load(concurrency=2, seconds=0.05))
    assert all(sample.sent < phase.began + 0.05 for sample in phase.samples)
    assert len(phase.samples) == len(server.bodies)


async def test_refusals_are_counted_by_status_with_an_excerpt_that_a_terminal_can_show() -> None:
    async with scripted(answer(), SLOW_DOWN) as server:
        phase, summary = await run(server, Load(concurrency=1, num_requests=6))
    assert summary.failures == {"HTTP 429": 3}
    assert summary.num_requests == 3
    assert phase.excerpts == {"HTTP 429": '{"error":{"message":"slow [31m down"}}'}


async def test_a_broken_connection_fails_one_request_and_the_next_goes_over_a_new_one() -> None:
    async with scripted(answer(), None) as server:
        _, summary = await run(server, Load(concurrency=1, num_requests=6))
    assert summary.failures == {"connection lost": 3}
    assert server.num_connections == 3


async def test_an_answer_that_ends_the_connection_is_no_failure() -> None:
    async with scripted(answer(headers=[b"Connection: close"])) as server:
        _, summary = await run(server, Load(concurrency=1, num_requests=3))
    assert (summary.num_requests, summary.failures) == (3, {})
    assert server.num_connections == 3


async def test_garbage_is_a_failure_of_its_own() -> None:
    async with scripted(b"SSH-2.0-OpenSSH_9.9\r\n\r\n") as server:
        _, summary = await run(server, Load(concurrency=1, num_requests=1))
    assert summary.failures == {"not HTTP: Expected HTTP/, RTSP/ or ICE/": 1}


async def test_a_server_that_never_answers_ends_the_request_in_time() -> None:
    gate = asyncio.Event()
    async with scripted(gate) as server:
        _, summary = await run(server, Load(concurrency=2, num_requests=2), patience=0.05)
        gate.set()
    assert summary.failures == {"no answer in 0.05 s": 2}


async def test_an_open_loop_sends_though_nothing_is_answered() -> None:
    gate = asyncio.Event()
    async with scripted(gate) as server:
        running = asyncio.create_task(run(server, Load(concurrency=100, num_requests=10, rate=1e4, seed=1)))
        await server.has_seen(10)
        gate.set()
        phase, summary = await running
    assert summary.num_requests == 10
    assert summary.lag_p99_ms is not None
    due = sorted(sample.due for sample in phase.samples)
    assert due[0] == phase.began
    assert all(sample.sent >= sample.due for sample in phase.samples)
    # every one of them waited, from the time it was due, until the last one had been sent
    assert all(sample.done - sample.due >= due[-1] - sample.due for sample in phase.samples)


async def test_an_open_loop_counts_what_it_could_not_send() -> None:
    gate = asyncio.Event()
    async with scripted(gate) as server:
        running = asyncio.create_task(run(server, Load(concurrency=3, num_requests=10, rate=1e6)))
        for _ in range(100):  # turns of the event loop; the schedule takes one for each request
            await asyncio.sleep(0)
        await server.has_seen(3)
        gate.set()
        _, summary = await running
    assert summary.failures == {NOT_SENT: 7}


async def test_where_nobody_listens() -> None:
    async with scripted() as server:
        pass
    generator = Generator(server.target, [request(server)])
    with pytest.raises(ConnectionLost):
        await generator.check()
    phase = Phase(Load(concurrency=1, num_requests=2))
    await generator.run(phase)
    assert summarize(phase).failures == {"connection lost": 2}


def test_a_target_is_no_secret() -> None:
    assert b"host: example.org:80\r\n" in post(Target("example.org", 80, False, ""), "/embed", b"{}")
