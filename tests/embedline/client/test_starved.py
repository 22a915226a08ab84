"""Where the system does not answer the client: a look-up of a name that hangs, no threads, a stderr that is gone."""

import asyncio
import io
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from embedline import AsyncClient, Client, DeadlineExceeded, NoThread, RequestProcessingPreference
from tests.embedline.client.stub import Seen, Step, raw, stub, texts
from tests.server_e2e.running import PATIENCE

QUICK = RequestProcessingPreference(batch_size=1, initial_backoff_ms=1, max_concurrent_requests=4)
_start = threading.Thread.start


def test_a_look_up_that_hangs_ends_with_the_calls_time_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, asked = threading.Event(), []
    look_up = socket.getaddrinfo

    def hanging(host: str, port: int, **more: Any) -> Any:
        if more["flags"] == 0:
            asked.append(host)
            goes_on.wait(PATIENCE)
        return look_up(host, port, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    with stub(lambda seen: [raw(seen.texts)]) as server, Client(server.url, preference=QUICK) as client:
        short = RequestProcessingPreference(batch_size=1, total_timeout_s=0.1, max_concurrent_requests=4)
        with pytest.raises(DeadlineExceeded):
            client.embed(texts(4), preference=short)
        assert asked == ["localhost"]
        goes_on.set()
        assert client.embed(texts(4)).done.all()


@pytest.mark.parametrize("name", ["embedline", "embedline deadlines", "embedline look-up", "embedline hedge"])
def test_a_thread_that_can_not_be_started_is_done_without_or_tried_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them fails."""
    refused: list[str] = []

    def start(thread: threading.Thread) -> None:
        if thread.name == name and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        _start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    preference = RequestProcessingPreference(batch_size=1, initial_backoff_ms=1, hedge_delay=600)
    with stub(lambda seen: [raw(seen.texts)]) as server, Client(server.url, preference=preference) as client:
        answer = client.embed(texts(6))
    assert answer.done.all()
    assert refused


def test_a_call_of_the_async_client_without_a_thread_is_an_error_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two threads fail: one call's, and one slice's. Then there are threads again."""
    refused: list[str] = []

    def start(thread: threading.Thread) -> None:
        if thread.name == "embedline calls" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        _start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)

    async def calls(url: str) -> int:
        async with AsyncClient(url) as client:
            with pytest.raises(NoThread, match=r"^the system starts no thread: can't start new thread$"):
                await client.embed(texts(1))
            with pytest.raises(NoThread):
                await anext(client.iter_embed(texts(1)))
            return int((await client.embed(texts(3))).done.sum())

    with stub(lambda seen: [raw(seen.texts)]) as server:
        assert asyncio.run(calls(server.url)) == 3


def test_a_call_that_a_broken_stderr_ends_leaves_nothing_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr("embedline.progress.LINE_SECONDS", 0.0)
    all_in_flight, never = threading.Event(), threading.Event()

    def script(seen: Seen) -> Sequence[Step]:
        if seen.number == 3:
            all_in_flight.set()
        return [all_in_flight, raw(seen.texts)] if seen.texts == ["text 0"] else [never]

    with stub(script) as server, Client(server.url, preference=QUICK) as client:
        with pytest.raises(BrokenPipeError) as kept:  # its traceback keeps the call's own generator
            client.embed(texts(4), progress=True)
        assert kept.value is not None
        assert not client._runner.watch._watched
        never.set()
