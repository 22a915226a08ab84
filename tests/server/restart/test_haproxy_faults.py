"""A rolling restart of two servers behind haproxy: no client notices."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.restart.load import Load
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, Server, serving

HAPROXY = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
FLAGS = (*FAKE, "--fake-cost-ms", "2")
# As docs/operations.md says: the delay is longer than the balancer needs to notice, here 0.2 s twice.
DELAY = ("--drain-delay", "2")
CONFIGURATION = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout check 5s
    retries 3
    option redispatch
frontend all
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    option httpchk GET /readyz
    default-server check inter 200ms fall 2 rise 1
    server one 127.0.0.1:{one}
    server two 127.0.0.1:{two}
"""


@contextlib.contextmanager
def balancing(one: int, two: int, folder: Path) -> Iterator[int]:
    """haproxy before two ports; its own."""
    assert HAPROXY is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = folder / "haproxy.cfg"
    file.write_text(CONFIGURATION.format(port=port, one=one, two=two))
    with subprocess.Popen([HAPROXY, "-db", "-f", str(file)], stderr=subprocess.DEVNULL) as process:
        try:
            while not accepts(port):
                assert process.poll() is None
            yield port
        finally:
            process.kill()


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def _restart_all(
    servers: list[Server], load: Load, folder: Path, stack: contextlib.ExitStack, *, num_requests: int
) -> None:
    """One after another, while clients ask; `servers` are the new ones then."""
    for index, server in enumerate(servers):
        server.process.terminate()
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        after = Server(*FLAGS, *DELAY, "--port", str(server.port), folder=folder)
        stack.enter_context(contextlib.closing(after))
        await asyncio.to_thread(after.wait_ready)
        servers[index] = after
        await load.wait_for(num_requests)  # haproxy has noticed by then


async def _rolling(folder: Path, stack: contextlib.ExitStack, *, rounds: int, num_requests: int) -> Load:
    servers = [stack.enter_context(serving(*FLAGS, *DELAY, folder=folder)) for _ in range(2)]
    balancer = stack.enter_context(balancing(servers[0].port, servers[1].port, folder))
    async with Load(balancer) as load:
        await load.wait_for(300)
        for number in range(rounds):
            await _restart_all(servers, load, folder, stack, num_requests=num_requests)
            print(f"rolling restart {number + 1}: {dict(load.outcomes)}", flush=True)
    return load


def rolling(folder: Path, *, rounds: int, num_requests: int) -> Load:
    """Restart both servers so often, with so many requests after each."""
    with contextlib.ExitStack() as stack:
        return asyncio.run(_rolling(folder, stack, rounds=rounds, num_requests=num_requests))


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
@pytest.mark.holds("A connection that was established is answered")
def test_a_rolling_restart_behind_haproxy_loses_nothing(tmp_path: Path, reached: Callable[[str, str], None]) -> None:
    load = rolling(tmp_path, rounds=1, num_requests=1000)
    reached("R10", f"{load.outcomes['answered']:,} requests behind haproxy, {load.lost or 'none'} lost")
    assert load.lost == {}
    assert load.outcomes["refused"] == 0
