"""Connections of processes that use threads."""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from wire.blocking import BlockingConnection
from wire.frames import Buffer


def test_a_frame_of_many_parts_and_more_than_the_socket_holds_arrives_whole() -> None:
    ours, theirs = socket.socketpair()
    parts: list[Buffer] = [bytes([number % 251]) * (number % 7) for number in range(1500)]
    parts += [np.arange(500_000, dtype=np.float32).data.cast("B"), b"end"]
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        sender, receiver = BlockingConnection(ours), BlockingConnection(theirs)
        sent = pool.submit(sender.send, 7, 8, parts)
        while not (frames := list(receiver.receive())):
            pass
        sent.result()
        assert [(kind, frame_id, bytes(payload)) for kind, frame_id, payload in frames] == [(7, 8, b"".join(parts))]
        assert not receiver.wait(0)


def test_an_engine_process_imports_no_event_loop() -> None:
    code = "import engine.worker, engine.fake, sys; print('asyncio' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
