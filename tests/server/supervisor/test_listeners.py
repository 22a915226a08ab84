"""A port that lets nobody in any more: whoever was in is served, and the queue's length is known. IPv4 and IPv6."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from server.settings.flag import SettingsError
from server.supervisor.listeners import MONITOR_NAME, Listeners, inherited
from server.supervisor.supervisor import empty_queues
from tests.structure.sources import ROOT

FAMILIES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
NO_ANSWER_SECONDS = 0.02  # a handshake on this machine takes microseconds


@pytest.fixture(params=FAMILIES, ids=["IPv4", "IPv6"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family, host = request.param
    with socket.socket(family) as made:
        try:
            made.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        made.listen(16)
        yield made


def connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname()[:2], timeout=NO_ANSWER_SECONDS)


@pytest.mark.holds("A connection that was established is answered", "Shutdown")
def test_who_is_in_is_served_and_nobody_else_comes_in(listener: socket.socket) -> None:
    listeners = Listeners([listener])
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(listener)) for _ in range(3)]
        assert listeners.num_waiting() == 3

        listeners.refuse_new()

        with pytest.raises(TimeoutError):
            connect(listener)
        for num_left, client in zip((2, 1, 0), clients, strict=True):
            client.sendall(b"question")
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(100) == b"question"
                accepted.sendall(b"answer")
            assert client.recv(100) == b"answer"
            assert client.recv(100) == b""  # the end comes through too
            assert listeners.num_waiting() == num_left


def test_sockets_of_one_port_are_counted_together() -> None:
    with contextlib.ExitStack() as stack:
        sockets = []
        port = 0
        for _ in range(2):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(("127.0.0.1", port))
            one.listen(16)
            port = one.getsockname()[1]
            sockets.append(one)
        listeners = Listeners(sockets)
        for _ in range(12):
            stack.enter_context(connect(sockets[0]))
        assert listeners.num_waiting() == 12

        listeners.refuse_new()

        for _ in range(8):  # whichever of the two the kernel chooses
            with pytest.raises(TimeoutError):
                connect(sockets[0])


@pytest.mark.holds("Shutdown")
def test_without_a_filter_the_queue_is_still_read(listener: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    class Sandboxed(Listeners):
        def refuse_new(self) -> None:
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")

    listeners = Sandboxed([listener])
    with connect(listener):
        assert listeners.num_waiting() == 1
        accepted: list[socket.socket] = []

        def accept() -> bool:
            accepted.append(listener.accept()[0])
            return True

        asyncio.run(empty_queues([listeners], is_worth_waiting=accept))
        assert len(accepted) == 1
        accepted[0].close()
    assert [record.getMessage() for record in caplog.records] == [
        "who connects while the port closes may be reset: Protocol not available"
    ]


def test_what_somebody_else_goes_on_serving_is_not_touched(listener: socket.socket) -> None:
    with pytest.raises(AssertionError):
        Listeners([listener], kept_elsewhere=True).refuse_new()


def _free_numbers() -> int:
    """The first of many descriptors that are not open, whatever other tests have left open in this process."""
    return max(700, *map(int, os.listdir("/proc/self/fd"))) + 1


def passed(*sockets: socket.socket, names: str | None = None) -> tuple[dict[str, str], int]:
    """As systemd hands them over, but from another number on, for this process has 3 open already."""
    first = _free_numbers()
    for number, one in enumerate(sockets):
        os.dup2(one.fileno(), first + number)
    given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets)), "PATH": "/bin"}
    return ({**given, "LISTEN_FDNAMES": names} if names is not None else given), first


@pytest.mark.holds("Network access")
@pytest.mark.parametrize("names", [None, "embedline.socket:embedline.socket", f"http:{MONITOR_NAME}"])
def test_sockets_that_are_passed_in(names: str | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        environment, first = passed(one, two, names=names)

        found = inherited(environment, first=first)

        assert environment == {"PATH": "/bin"}  # no child may take them for its own
        ports = {name: [own.getsockname() for own in listeners.sockets] for name, listeners in found.items()}
        both = [one.getsockname(), two.getsockname()]
        assert ports == ({"": both[:1], MONITOR_NAME: both[1:]} if names == f"http:{MONITOR_NAME}" else {"": both})
        assert all(listeners.kept_elsewhere for listeners in found.values())
        assert not any(os.get_inheritable(own.fileno()) for found_ in found.values() for own in found_.sockets)
        for listeners in found.values():
            listeners.close()


@pytest.mark.parametrize("change", [{"LISTEN_PID": "1"}, {"LISTEN_FDS": "0"}, {"LISTEN_PID": ""}, {"LISTEN_FDS": "x"}])
def test_variables_that_are_meant_for_another_process_are_left_alone(change: dict[str, str]) -> None:
    assert inherited({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", **change}, first=100_000) == {}


def test_only_listening_tcp_sockets_are_taken() -> None:
    with socket.socket() as silent, socket.socket(socket.AF_UNIX) as local, open(ROOT / "Makefile") as file:
        silent.bind(("127.0.0.1", 0))
        local.bind("")
        local.listen()
        for wrong in (silent, local, file):
            first = _free_numbers()
            os.dup2(wrong.fileno(), first)
            environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
            with pytest.raises(SettingsError, match=rf"^LISTEN_FDS: descriptor {first} is not a "):
                inherited(environment, first=first)
            with contextlib.suppress(OSError):
                os.close(first)
