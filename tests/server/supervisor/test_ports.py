"""Ports that can't be had: one line, and what helps."""

import errno
import socket

import pytest

from server.settings.flag import SettingsError
from server.supervisor.listeners import bind, host_and_port, reserve


@pytest.mark.holds("Containers")
def test_a_low_port_that_is_roots_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who is refused nothing."""

    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(SettingsError) as refused:
        bind("127.0.0.1", 80, "--port")

    message = str(refused.value)
    assert message.startswith("--port 80: can't listen there: Permission denied; ")
    assert "--port 8080" in message
    assert "--sysctl net.ipv4.ip_unprivileged_port_start=0" in message


def test_a_port_that_is_taken_gets_no_such_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"^--port {port}: can't listen there: Address already in use$"):
            bind("127.0.0.1", port, "--port")


def listen_beside(port: int) -> socket.socket:
    """As a frontend's gRPC library does."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


@pytest.mark.holds("gRPC")
def test_a_reserved_port_is_this_servers_alone_unless_it_takes_over() -> None:
    with reserve("127.0.0.1", 0, "--grpc-port") as reserved:
        address = host_and_port(reserved)
        port = int(address.removeprefix("127.0.0.1:"))
        with listen_beside(port), listen_beside(port):
            with pytest.raises(
                SettingsError, match=f"^--grpc-port {port}: can't listen there: Address already in use$"
            ):
                reserve("127.0.0.1", port, "--grpc-port")
            with reserve("127.0.0.1", port, "--grpc-port", may_be_shared=True), listen_beside(port):
                pass
    with socket.create_server(("127.0.0.1", 0)) as strangers:
        port = strangers.getsockname()[1]
        with pytest.raises(SettingsError, match="already in use"):
            reserve("127.0.0.1", port, "--grpc-port", may_be_shared=True)
