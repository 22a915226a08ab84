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


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("word", ["version", "--help"])
@pytest.mark.parametrize(
    ("streams", "why"), [(">/dev/full", "No space left on device"), ("1</dev/null", "Bad file descriptor")]
)
def test_output_that_can_t_be_written_is_one_line(streams: str, why: str, word: str, unbuffered: str) -> None:
    message = f"embedline: standard output can't be written: {why}\n"
    assert run(word, streams=streams, unbuffered=unbuffered) == (1, message)


def test_a_reader_that_has_gone_needs_no_line() -> None:
    """It goes when it has what it wanted; to be certain, it has gone before the first word."""
    code = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, sys.executable, "-m", "embedline", "version"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("streams", ["2>/dev/full", "2</dev/null", "2>&-", ">/dev/full 2>/dev/full"])
def test_a_message_that_can_t_be_written_changes_no_exit_code(streams: str) -> None:
    assert run("inspect", "/nothing/here", streams=streams) == (2, "")


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_end_nothing(streams: str) -> None:
    assert run("version", streams=streams) == (0, "")
