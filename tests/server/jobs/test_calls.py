"""Calls between a frontend and the jobs process: bytes go through whole, refusals with their reasons, nothing hangs."""

import asyncio
import os
from pathlib import Path

import pytest

from server.features.jobs import rpc as rpc_module
from server.features.jobs.messages import CHUNK_BYTES, Call, Reason, Refused, Reply
from server.features.jobs.rpc import JobsClient, Service
from tests.server.jobs.connected import connected, listening


async def echo(call: Call, body: memoryview) -> Reply:
    return Reply({"owner": call.owner, **call.fields}, body)


async def refuse(call: Call, body: memoryview) -> Reply:
    raise Refused(Reason.FULL, "no room", param="a", retry_after=7.0)


async def fail(call: Call, body: memoryview) -> Reply:
    raise ZeroDivisionError("planted")


async def wait(call: Call, body: memoryview) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError


HANDLERS = {"echo": echo, "refuse": refuse, "fail": fail, "wait": wait}


def test_a_chunk_comes_back_as_it_was(tmp_path: Path) -> None:
    chunk = os.urandom(CHUNK_BYTES)

    async def test() -> Reply:
        async with connected(tmp_path, HANDLERS) as client:
            return await client.call("echo", "team", {"a": [1, "é"]}, chunk)

    reply = asyncio.run(test())
    assert reply.fields == {"owner": "team", "a": [1, "é"]}
    assert bytes(reply.body) == chunk


def test_a_refusal_says_why(tmp_path: Path) -> None:
    async def test() -> Refused:
        async with connected(tmp_path, HANDLERS) as client:
            with pytest.raises(Refused) as caught:
                await client.call("refuse", "")
            return caught.value

    refused = asyncio.run(test())
    assert (refused.reason, refused.message, refused.param, refused.retry_after) == (Reason.FULL, "no room", "a", 7.0)


def test_after_a_fault_of_ours_the_next_call_is_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected(tmp_path, HANDLERS) as client:
            with pytest.raises(Refused) as caught:
                await client.call("fail", "")
            assert caught.value.reason is Reason.FAILED
            assert "planted" not in caught.value.message
            assert (await client.call("echo", "")).fields == {"owner": ""}

    asyncio.run(test())


def test_a_process_that_is_down_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is there, as the supervisor keeps it, and nobody accepts."""
    monkeypatch.setattr(rpc_module, "_START_SECONDS", 0.01)

    async def test() -> Refused:
        with listening(tmp_path / "jobs.sock"):
            client = JobsClient(str(tmp_path / "jobs.sock"))
            client.open()
            with pytest.raises(Refused) as caught:
                await client.call("echo", "")
            client.close()
        return caught.value

    refused = asyncio.run(test())
    assert refused.reason is Reason.UNAVAILABLE
    assert refused.retry_after


def test_a_call_ends_with_the_process_and_the_next_goes_to_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sock"

    async def test() -> None:
        listener = listening(path)
        first = Service(HANDLERS)
        copy = listener.dup()
        await first.start(listener)
        client = JobsClient(str(path))
        client.open()
        await client.call("echo", "")
        waiting = asyncio.create_task(client.call("wait", ""))
        await client.call("echo", "")  # by now the other has arrived
        for connection in list(first._connections):
            connection.close()
        with pytest.raises(Refused, match="ended before it answered"):
            await waiting
        assert first._server is not None
        first._server.close()
        second = Service(HANDLERS)
        await second.start(copy)
        assert (await client.call("echo", "")).fields == {"owner": ""}
        client.close()
        await second.stop()
        for task in first._tasks:
            task.cancel()

    asyncio.run(test())
