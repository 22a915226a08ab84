"""HAProxy and Envoy as deploy/balancers configures them, in front of servers of a test."""

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.server_e2e.running import PATIENCE, ROOT, send

ENVOY = Path(os.environ.get("EMBEDLINE_CLIENTS", ROOT / ".clients")) / "envoy/bin"
CONFIGURATIONS = {"haproxy": "haproxy.cfg", "envoy": "envoy.yaml"}


class Balancer:
    """A running one. It has what a `Load` needs of a server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def is_ready(self) -> bool:
        """Whether it passes requests on."""
        with contextlib.closing(self.connect()) as connection, contextlib.suppress(ConnectionError):
            return send(connection, "GET", "/readyz").status == 200
        return False


@contextlib.contextmanager
def balancing(name: str, ports: Sequence[int], folder: Path) -> Iterator[Balancer]:
    """In front of the servers on these ports. Skips where it is not installed."""
    program = shutil.which(name) or shutil.which(name, path=str(ENVOY))
    if program is None:
        pytest.skip(f"{name} is not installed (haproxy is of Debian; make .clients/envoy/.made)")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))  # kept while the balancer binds it too
        port = listener.getsockname()[1]
        configuration = folder / CONFIGURATIONS[name]
        configuration.write_text(configured(name, port, ports))
        flags = ("-db", "-f") if name == "haproxy" else ("--use-dynamic-base-id", "-c")
        with (folder / "log").open("w") as log:
            process = subprocess.Popen([program, *flags, str(configuration)], stdout=log, stderr=log)
        try:
            balancer = Balancer(port)
            while not balancer.is_ready():
                assert process.poll() is None, (folder / "log").read_text()
            yield balancer
        finally:
            process.kill()
            process.wait(PATIENCE)


def configured(name: str, port: int, servers: Sequence[int]) -> str:
    """The configuration with the addresses changed and nothing else."""
    text = (ROOT / "deploy" / "balancers" / CONFIGURATIONS[name]).read_text()
    if name == "haproxy":
        changes = [("bind :8080", f"bind 127.0.0.1:{port}")]
        changes += [(f"10.0.0.{number}:8080", f"127.0.0.1:{at}") for number, at in enumerate(servers, 1)]
    else:
        changes = [("address: 0.0.0.0, port_value: 8080", f"address: 127.0.0.1, port_value: {port}")]
        changes += [
            (f"address: 10.0.0.{number}, port_value: 8080", f"address: 127.0.0.1, port_value: {at}")
            for number, at in enumerate(servers, 1)
        ]
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
