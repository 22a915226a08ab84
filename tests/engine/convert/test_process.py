"""What the converting process has given up, tried from inside such a process."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from engine.convert import process
from tests.structure.sources import ROOT

TRY = """
import json, resource, socket, sys
from engine.convert.process import isolate
from engine.convert.conversion import ConversionLimits
def reaches(port):
    with socket.socket() as one:
        one.settimeout(10)
        return one.connect_ex(("127.0.0.1", port)) == 0
before = reaches(int(sys.argv[1]))
left = isolate(ConversionLimits(max_file_bytes=1000, max_memory_bytes=1 << 30, max_cpu_seconds=1))
found = {"before": before, "left": left, "after": reaches(int(sys.argv[1]))}
try:
    bytearray(2 << 30)
    found["memory"] = "taken"
except MemoryError:
    found["memory"] = "refused"
kinds = (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
found["limits"] = [resource.getrlimit(kind) for kind in kinds]
print(json.dumps(found), flush=True)
while True:
    pass
"""


class Refusing:
    """A C library under a kernel that permits nothing."""

    def unshare(self, flags: int) -> int:
        return -1


@pytest.mark.holds("Pickles are read only by one isolated process")
def test_it_reaches_nobody_and_takes_no_more_than_it_may() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-P", "-c", TRY, str(listening.getsockname()[1])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGXCPU, ended.stderr
    found = json.loads(ended.stdout)
    assert found["before"]
    assert found["after"] is not found["left"]  # where the kernel does not permit it, it says so
    assert found["memory"] == "refused"
    assert found["limits"] == [[1000, 1000], [1, 2], [0, 0]]


def test_where_no_namespace_is_permitted_it_says_so() -> None:
    libc: ctypes.CDLL = Refusing()  # type: ignore[assignment]
    assert process._leave_network(libc) is False
