"""A client that leaves: at every stage of its request the work is dropped, nothing stays counted as open, and the
stage is told."""

import asyncio
from typing import Any

import pytest

from server.http.body import Message
from server.requests import limits
from tests.server.edge import Edge, call

PATH = "/v1/embeddings"
LARGE = [b'{"input":"a","user":"', b"x" * 950, b'"}']  # in pieces, so that it counts against what may be open


async def leave(edge: Edge, stage: str) -> None:
    """One request whose client leaves at that stage."""
    match stage:
        case "read":
            await call(edge.app, "POST", PATH, [])
            return
        case "tokenize":
            edge.tokenizers.gate = asyncio.Event()
            waiting = asyncio.create_task(call(edge.app, "POST", PATH, LARGE))
        case "queue":
            edge.managers.gate = asyncio.Event()
            waiting = asyncio.create_task(call(edge.app, "POST", PATH, LARGE))
        case "respond":  # between the rows of two items
            waiting = asyncio.create_task(call(edge.app, "POST", "/embed_all", b'{"inputs":["a","b"]}'))
    for _ in range(20):
        await asyncio.sleep(0)
        if edge.managers.submitted or (stage == "tokenize" and edge.tokenizers.asked):
            break
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


def counts(edge: Edge) -> dict[tuple[str, ...], Any]:
    return {tuple(key): value for *key, value in edge.metrics.drain()["counts"]}


@pytest.mark.holds("Cancellation")
@pytest.mark.parametrize(("stage", "num_submitted"), [("read", 0), ("tokenize", 0), ("queue", 1), ("respond", 1)])
async def test_the_work_is_dropped_at_every_stage(
    stage: str, num_submitted: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SLICE_SECONDS", 0.0)  # an answer pauses after each item
    edge = Edge(max_requests=1)
    for _ in range(6):  # four of these bodies may be open
        edge.managers.submitted.clear()
        edge.tokenizers.asked.clear()
        await leave(edge, stage)
        assert len(edge.managers.submitted) == num_submitted
        assert edge.admission.requests.num_open == 0
        assert not edge.page.admitted_tokens.any()
    counted = counts(edge)
    assert counted["embedline_cancelled_total", stage] == 6
    assert sum(value for key, value in counted.items() if key[0] == "embedline_requests_total") == 6
    assert all(key[-1] == "499" for key in counted if key[0] == "embedline_requests_total")
    edge.tokenizers.gate = edge.managers.gate = None
    assert (await call(edge.app, "POST", PATH, LARGE)).status == 200
    assert caplog.records == []


async def test_who_leaves_while_the_answer_is_sent_was_not_answered() -> None:
    edge = Edge()
    is_sending = asyncio.Event()

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"input":"a"}'}

    async def send(_: Message) -> None:
        is_sending.set()
        await asyncio.Event().wait()  # as where the client does not read

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    waiting = asyncio.create_task(edge.app(scope, receive, send))
    await is_sending.wait()
    waiting.cancel()
    await asyncio.wait([waiting])

    counted = counts(edge)
    assert counted["embedline_requests_total", PATH, "interactive", "499"] == 1
    assert counted["embedline_cancelled_total", "respond"] == 1
    assert not any(key[0] == "embedline_inputs_total" for key in counted)
    assert edge.admission.requests.num_open == 0
