"""The command line with standard streams that can't be written."""

import os
import subprocess
import sys

import pytest

from tests.server_e2e.running import PATIENCE
from tests.structure.sources import ROOT


def run(*words: str, streams: str, unbuffered: str = "") -> tuple[int, str]:
    """The exit code, and what reached standard error."""
    ended = subprocess.run(
        ["bash", "-c", f'exec "$@" {streams}', "bash", sys.executable, "-m", "embedline", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return ended.returncode, ended.stderr


CANT = "embedline: standard output can't be written: {}\n"
LOST = "inspect /nothing/here"  # what it says can't be written either


@pytest.mark.parametrize(
    ("words", "streams", "unbuffered", "ended"),
    [
        ("version", ">/dev/full", "", (1, CANT.format("No space left on device"))),
        ("version", ">/dev/full", "1", (1, CANT.format("No space left on device"))),
        ("--help", "1</dev/null", "", (1, CANT.format("Bad file descriptor"))),
        ("--help", "1</dev/null", "1", (1, CANT.format("Bad file descriptor"))),
        *((LOST, streams, "", (2, "")) for streams in ("2>/dev/full", "2</dev/null", "2>&-", ">/dev/full 2>/dev/full")),
        *(("version", streams, "", (0, "")) for streams in (">&-", "<&- >&- 2>&-")),
    ],
)
def test_streams_that_can_t_be_written(words: str, streams: str, unbuffered: str, ended: tuple[int, str]) -> None:
    assert run(*words.split(), streams=streams, unbuffered=unbuffered) == ended


def test_a_reader_that_has_gone_needs_no_line() -> None:
    """It goes when it has what it wanted; to be certain, it has gone before the first word."""
    code = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, sys.executable, "-m", "embedline", "version"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
