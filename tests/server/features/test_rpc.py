"""Calls between a frontend and the process of a feature: bytes go through whole, errors as they were raised, nothing
hangs, and a call that nobody waits for is cancelled or finished as its process wants it.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from server.features import rpc
from server.features.rpc import Caller, Reply, RpcCall, Service
from server.requests.errors import ERRORS, EngineFailed, NotReady, RequestError
from tests.server.jobs.connected import listening
from wire import frames
from wire.connection import FrameConnection


class Process:
    """Answers by what is asked for, and takes note of how calls that wait end."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.ends: list[str] = []
        self.has_ended = asyncio.Event()

    async def answer(self, call: RpcCall) -> None:
        if call.what == "wait":
            await self._wait()
        if call.what == "fail":
            raise ZeroDivisionError("planted")
        if call.what == "refuse":
            raise next(kind for kind in ERRORS if kind.__name__ == call.owner)(
                "no é", param="a", retry_after=7.0, reason="full"
            )
        call.answer({"owner": call.owner, **call.fields}, [call.body[:1], call.body[1:]])

    async def _wait(self) -> None:
        self.began.set()
        try:
            await self.may_end.wait()
            self.ends.append("finished")
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        finally:
            self.has_ended.set()


@asynccontextmanager
async def connected(folder: Path, process: Process, *, cancels: bool = False) -> AsyncIterator[Caller]:
    service, caller = Service("some", process.answer, cancels=cancels), caller_of(folder)
    await service.start(listening(folder / "some.sock"))
    caller.open()
    try:
        yield caller
    finally:
        caller.close()
        process.may_end.set()
        await service.stop()


def caller_of(folder: Path) -> Caller:
    return Caller(str(folder / "some.sock"), "some", lost="is gone")


def connection_of(caller: Caller) -> FrameConnection:
    connection = caller._link._connection
    assert connection is not None
    return connection


@pytest.mark.parametrize("num_bytes", [0, 1, 1 << 20])
async def test_bytes_and_values_come_back_as_they_were(tmp_path: Path, num_bytes: int) -> None:
    sent = os.urandom(num_bytes)
    async with connected(tmp_path, Process()) as caller:
        value, body = await caller.call("echo", "team", body=sent, a=[1, "é", None], b=2.0)
    assert value == {"owner": "team", "a": [1, "é", None], "b": 2.0}
    assert bytes(body) == sent


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_an_error_comes_as_it_was_raised(tmp_path: Path, kind: type[RequestError]) -> None:
    async with connected(tmp_path, Process()) as caller:
        with pytest.raises(RequestError) as caught:
            await caller.call("refuse", kind.__name__)
    found = caught.value
    assert type(found) is kind
    assert (found.message, found.param, found.retry_after, found.reason) == ("no é", "a", 7.0, "full")


async def test_after_a_fault_of_ours_the_next_call_is_answered(tmp_path: Path) -> None:
    async with connected(tmp_path, Process()) as caller:
        with pytest.raises(EngineFailed, match="the some process failed on the call fail"):
            await caller.call("fail", "")
        assert await caller.call("echo", "") == Reply({"owner": ""})


async def test_a_call_that_no_frame_holds_leaves_its_place_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD", 1000)
    monkeypatch.setattr(rpc, "_MAX_CALLS", 1)
    async with connected(tmp_path, Process()) as caller:
        with pytest.raises(frames.PayloadTooLarge):
            await caller.call("echo", "", body=bytes(1000))
        assert await caller.call("echo", "") == Reply({"owner": ""})


async def test_a_process_that_is_down_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is there, as the supervisor keeps it, and nobody accepts."""
    monkeypatch.setattr(rpc, "_START_SECONDS", 0.01)
    with listening(tmp_path / "some.sock"):
        caller = caller_of(tmp_path)
        caller.open()
        with pytest.raises(NotReady, match="the some process is down") as caught:
            await caller.call("echo", "")
        caller.close()
    assert (caught.value.reason, caught.value.retry_after) == ("some_unavailable", 2.0)


async def test_a_call_ends_with_the_process_and_the_next_goes_to_its_successor(tmp_path: Path) -> None:
    listener, process = listening(tmp_path / "some.sock"), Process()
    first, second = Service("some", process.answer), Service("some", process.answer)
    successors = listener.dup()
    await first.start(listener)
    caller = caller_of(tmp_path)
    caller.open()
    waiting = asyncio.create_task(caller.call("wait", ""))
    await process.began.wait()
    for connection in list(first._connections):
        connection.close()
    with pytest.raises(NotReady, match="the some process is gone"):
        await waiting
    process.may_end.set()
    await first.stop()
    await second.start(successors)
    assert (await caller.call("echo", "")).value == {"owner": ""}
    caller.close()
    await second.stop()


@pytest.mark.parametrize(("cancels", "end"), [(True, "cancelled"), (False, "finished")])
@pytest.mark.parametrize("leaving", ["cancelled", "late", "gone"])
async def test_a_call_that_nobody_waits_for(tmp_path: Path, cancels: bool, end: str, leaving: str) -> None:
    process = Process()
    async with connected(tmp_path, process, cancels=cancels) as caller:
        waiting = asyncio.create_task(caller.call("wait", "", timeout_s=0.001 if leaving == "late" else None))
        await process.began.wait()
        if leaving == "late":
            with pytest.raises(NotReady, match="the some process does not answer"):
                await waiting
        elif leaving == "cancelled":
            waiting.cancel()
        else:
            connection_of(caller).close()
        await asyncio.wait([waiting])
        await caller.call("echo", "")  # what was said of the other has arrived
        process.may_end.set()
        await process.has_ended.wait()
    assert process.ends == [end]


async def test_calls_that_wait_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_MAX_CALLS", 1)
    process = Process()
    async with connected(tmp_path, process) as caller:
        waiting = asyncio.create_task(caller.call("wait", ""))
        await process.began.wait()
        with pytest.raises(NotReady, match="too many calls wait for the some process"):
            await caller.call("echo", "")
        process.may_end.set()
        assert (await waiting).value == {"owner": ""}


async def test_a_process_that_stops_answers_what_has_begun(tmp_path: Path) -> None:
    process = Process()
    service, caller = Service("some", process.answer), caller_of(tmp_path)
    await service.start(listening(tmp_path / "some.sock"))
    caller.open()
    waiting = asyncio.create_task(caller.call("wait", "me"))
    await process.began.wait()
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0)
    process.may_end.set()
    assert (await waiting).value == {"owner": "me"}
    await stopping
    caller.close()


@pytest.mark.parametrize("payload", [b"", b"\x01\x00", b"\xff\x00\x00\x00\x93", b"\x01\x00\x00\x00\xc1"])
async def test_a_frame_that_cant_be_read_cuts_the_connection_alone(tmp_path: Path, payload: bytes) -> None:
    async with connected(tmp_path, Process()) as caller:
        await caller.call("echo", "")
        connection = connection_of(caller)
        connection.send(rpc.CALL, 99, [payload])
        with pytest.raises(NotReady, match="is gone"):
            await caller.call("wait", "")
        assert (await caller.call("echo", "")).value == {"owner": ""}
