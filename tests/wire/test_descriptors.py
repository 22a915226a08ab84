"""Frames that bring open descriptors along."""

import os
import socket
from pathlib import Path

import pytest

from wire import frames
from wire.descriptors import DescriptorConnection
from wire.frames import ProtocolError


def pair() -> tuple[DescriptorConnection, DescriptorConnection]:
    one, two = socket.socketpair()
    for end in (one, two):
        end.settimeout(20)
    return DescriptorConnection(one), DescriptorConnection(two)


def receive(connection: DescriptorConnection, number: int) -> list[tuple[int, bytes]]:
    arrived: list[tuple[int, bytes]] = []
    while len(arrived) < number:
        arrived += [(kind, bytes(payload)) for kind, payload in connection.receive()]
    return arrived


@pytest.mark.parametrize("num_files", [1, 100])
def test_each_descriptor_comes_with_its_frame(num_files: int, tmp_path: Path) -> None:
    sender, receiver = pair()
    for number in range(num_files):
        (tmp_path / str(number)).write_text(str(number))
        with open(tmp_path / str(number)) as file:
            sender.send(7, [b"%d" % number], descriptors=[file.fileno()])
        ((kind, payload),) = receive(receiver, 1)
        descriptor = receiver.descriptors.popleft()
        assert (kind, payload) == (7, b"%d" % number)
        assert not os.get_inheritable(descriptor)
        with open(descriptor) as file:
            assert file.read() == str(number)
    sender.close()
    with pytest.raises(EOFError):
        receiver.receive()
    receiver.close()


def test_several_that_wait_come_in_their_order() -> None:
    sender, receiver = pair()
    read_ends = []
    for number in range(3):
        read_end, write_end = os.pipe()
        read_ends.append(read_end)
        sender.send(number, descriptors=[write_end])
        os.close(write_end)
    assert [kind for kind, _ in receive(receiver, 3)] == [0, 1, 2]
    for read_end in read_ends:
        with open(receiver.descriptors.popleft(), "w") as file:
            file.write("here")
        with open(read_end) as file:
            assert file.read() == "here"
    sender.close()
    receiver.close()


def test_what_nobody_took_is_closed() -> None:
    sender, receiver = pair()
    read_end, write_end = os.pipe()
    sender.send(1, descriptors=[write_end])
    os.close(write_end)
    receive(receiver, 1)
    receiver.close()
    sender.close()
    with open(read_end) as file:
        assert file.read() == ""


def test_who_is_there() -> None:
    one, two = pair()
    assert (one.peer.pid, one.peer.uid) == (os.getpid(), os.getuid())
    one.close()
    two.close()


def test_another_version_is_refused() -> None:
    one, two = socket.socketpair()
    connection = DescriptorConnection(one)
    two.sendall(b"".join(frames.frame(frames.HELLO, 0, [b"EMBL", (frames.VERSION + 1).to_bytes(2, "little"), b"\0\0"])))
    with pytest.raises(ProtocolError, match=f"speaks version {frames.VERSION + 1}"):
        connection.receive()
    connection.close()
    two.close()
