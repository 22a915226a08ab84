"""One server takes over from another under load; either of them is killed in the middle."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.restart.load import Load
from tests.server_e2e.expected import COMPACT, FAKE, SPREAD
from tests.server_e2e.running import PATIENCE, Server, serving

FLAGS = (*FAKE, "--fake-cost-ms", "2", "--frontends", "2")


@contextlib.contextmanager
def successor(of: Server, *flags: str, folder: Path) -> Iterator[Server]:
    """A server that takes over; it may not be ready yet."""
    server = Server(*FLAGS, *flags, "--takeover", "--port", str(of.port), folder=folder)
    server.port = of.port
    try:
        yield server
    finally:
        server.close()


def held_back(folder: Path) -> tuple[tuple[str, str], Path]:
    """Flags of a server whose engine starts only when the file is there, so that it is not ready before."""
    python, start = folder / "python", folder / "start"
    wait = f'while [ ! -e "{start}" ] && [ -d /proc/$PPID ]; do sleep 0.05; done'
    # the interpreter is asked for its version, too
    python.write_text(f'#!/bin/sh\ncase "$*" in *engine.worker*) {wait};; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    return ("--engine-python", str(python)), start


async def waited(server: Server) -> int:
    return await asyncio.to_thread(server.process.wait, PATIENCE)


@pytest.mark.holds("A connection that was established is answered", "Taking over")
@pytest.mark.parametrize(
    "successors",
    [
        [("--frontends", "1", *SPREAD)] * 2,
        [("--frontends", "3")] * 2,
        [("--frontends", "1", *COMPACT), ("--frontends", "2")],
        [("--frontends", "1", *COMPACT)] * 2,
    ],
)
@pytest.mark.full
@pytest.mark.faults
def test_a_takeover_of_a_takeover_loses_and_refuses_nothing(successors: list[tuple[str, ...]], tmp_path: Path) -> None:
    async def test(first: Server, second_of: contextlib.ExitStack) -> None:
        async with Load(first.port) as load:
            await load.wait_for(300)
            before = first
            for flags in successors:
                after = second_of.enter_context(successor(before, *flags, folder=tmp_path))
                assert await waited(before) == 0
                await load.wait_for(300)
                before = after
        assert load.lost == {}
        assert load.outcomes["refused"] == 0

    with serving(*FLAGS, folder=tmp_path) as server, contextlib.ExitStack() as stack:
        asyncio.run(test(server, stack))


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Taking over")
@pytest.mark.parametrize("line", ["serves until this server is ready", "tokenizer 0 is ready", "frontend 0 is ready"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_successor_that_ends_too_early_changes_nothing(line: str, number: signal.Signals, tmp_path: Path) -> None:
    async def test(server: Server, after: Server) -> None:
        async with Load(server.port) as load:
            await load.wait_for(50)
            await asyncio.to_thread(after.log.wait_for, line)
            after.process.send_signal(number)
            await waited(after)
            await asyncio.to_thread(server.log.wait_for, "this one goes on")
            await load.wait_for(300)
        assert load.lost == {}
        assert load.outcomes["refused"] == 0

    flags, _ = held_back(tmp_path)
    with serving(*FLAGS, folder=tmp_path) as server, successor(server, *flags, folder=tmp_path) as after:
        asyncio.run(test(server, after))
        assert server.process.poll() is None
        with successor(server, folder=tmp_path) as third:  # and the next one may
            assert server.process.wait(PATIENCE) == 0
            assert third.embed("hello").status == 200


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Taking over")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_running_server_ends_too_early_clients_wait(number: signal.Signals, tmp_path: Path) -> None:
    """Whoever connects while nobody accepts is answered by the successor; nobody is refused."""

    async def test(server: Server, after: Server) -> None:
        await asyncio.to_thread(after.log.wait_for, "serves until this server is ready")
        server.process.send_signal(number)
        await waited(server)
        async with Load(server.port) as load:
            await load.wait_for(200)
        assert load.lost == {}
        assert load.outcomes["refused"] == 0

    with serving(*FLAGS, folder=tmp_path) as server, successor(server, folder=tmp_path) as after:
        asyncio.run(test(server, after))
        assert after.stop() == 0


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Taking over")
def test_of_two_successors_at_once_one_takes_over(tmp_path: Path) -> None:
    flags, start = held_back(tmp_path)
    with serving(*FLAGS, folder=tmp_path) as server, successor(server, *flags, folder=tmp_path) as one:
        one.log.wait_for("serves until this server is ready")
        with successor(server, folder=tmp_path) as other:  # its end removes the folder that all share
            assert other.process.wait(PATIENCE) == 2
            other.log.wait_for("another server is taking over already")
            start.touch()
            assert server.process.wait(PATIENCE) == 0
            assert one.embed("hello").status == 200


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Taking over")
def test_the_monitor_port_is_handed_over_too(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        probe = stack.enter_context(serving(*FLAGS, folder=tmp_path))
        monitor = str(probe.port)
        assert probe.stop() == 0  # its port is free now
        first = stack.enter_context(serving(*FLAGS, "--prometheus-port", monitor, folder=tmp_path))
        after = stack.enter_context(successor(first, "--prometheus-port", monitor, folder=tmp_path))
        assert first.process.wait(PATIENCE) == 0
        after.port = int(monitor)
        assert after.request("GET", "/readyz").status == 200
        assert b"embedline_ready 1.0" in after.request("GET", "/metrics").body


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Taking over")
def test_on_the_same_gpu_the_running_server_ends_first_and_clients_wait(tmp_path: Path) -> None:
    """The running server can't end while the rest of a body has still to come."""
    gpu = ("--devices", "cuda:0")  # the fake engine takes any name
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 13\r\n\r\n"

    async def test(server: Server) -> None:
        async with Load(server.port, num_clients=8) as load:
            await load.wait_for(100)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            with successor(server, *gpu, folder=tmp_path) as after:
                await asyncio.to_thread(after.log.wait_for, "ends first, as both servers need cuda:0")
                with pytest.raises(subprocess.TimeoutExpired):
                    await asyncio.to_thread(server.process.wait, 1.0)
                assert not [line for line in after.log.lines if "engine 0 is ready" in line]
                writer.write(b'{"input":"a"}')
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
                writer.close()
                assert await waited(server) == 0
                await load.wait_for(100)
                await load.stop()
        assert load.lost == {}
        assert load.outcomes["refused"] == 0

    with serving(*FLAGS, *gpu, folder=tmp_path) as server:
        asyncio.run(test(server))
