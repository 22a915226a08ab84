"""Standard error that nobody reads: writers go on, lines are dropped and counted, and what was kept comes in order."""

import logging
import os
import threading

import pytest

from server.supervisor.stderr_relay import StderrRelay

LINE = b"x" * 1000


class Relayed:
    """A descriptor whose output is relayed to a pipe. `write` is what processes do."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        self._fd = os.dup(self._write_end)
        self.relay = StderrRelay(logging.Formatter("%(levelname)s %(message)s"), fd=self._fd)

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def read(self) -> list[bytes]:
        """All lines, up to the orderly end."""
        lines: list[bytes] = []
        with open(self._read_end, "rb") as pipe:
            reader = threading.Thread(target=lambda: lines.extend(pipe))
            reader.start()
            self.relay.close(30)
            for descriptor in (self._fd, self._write_end, self.relay.original):
                os.close(descriptor)
            reader.join()
        return lines

    def abandon(self) -> None:
        """The end of a reader that never reads."""
        os.close(self._read_end)


@pytest.fixture
def relayed() -> Relayed:
    return Relayed()


@pytest.mark.holds("The log")
def test_lines_come_in_order_and_the_last_one_at_the_end(relayed: Relayed) -> None:
    relayed.write(b"first\nsec")
    relayed.write(b"ond\n")
    relayed.write(b"no end of line")

    assert relayed.read() == [b"first\n", b"second\n", b"no end of line"]


@pytest.mark.holds("The log")
def test_a_reader_that_does_not_read_blocks_no_writer(relayed: Relayed) -> None:
    """The pipe to the reader takes 64 KiB and 8 MiB wait for it; the rest is dropped, counted and reported."""
    dropped: list[int] = []
    is_dropping = threading.Event()

    def note(num_lines: int) -> None:
        dropped.append(num_lines)
        is_dropping.set()

    relayed.relay.on_dropped = note
    num_written = 0
    while not is_dropping.is_set():
        relayed.write(b"%08d %b\n" % (num_written, LINE))
        num_written += 1

    lines = relayed.read()

    # more than one if the reader made some room while the last lines were on their way
    notices = [line for line in lines if line.startswith(b"WARNING ")]
    missing = [int(notice.split()[1]) for notice in notices]
    assert sum(missing) == sum(dropped)
    assert [notice.partition(b" missing here: ")[2] for notice in notices] == [
        b"standard error could not be written fast enough, or at all\n"
    ] * len(missing)
    numbers = [int(line[:8]) for line in lines if line not in notices]
    assert len(numbers) == num_written - sum(dropped)
    assert numbers == sorted(numbers)


def test_what_never_ends_a_line_does_not_pile_up(relayed: Relayed) -> None:
    relayed.write(b"y" * 300_000)
    lines = relayed.read()
    assert b"".join(lines) == b"y" * 300_000


def test_a_reader_that_has_gone_blocks_nobody(relayed: Relayed) -> None:
    relayed.abandon()
    for _ in range(20_000):
        relayed.write(LINE + b"\n")
    relayed.relay.close(30)


def test_a_bar_can_be_drawn_where_the_log_goes_if_that_is_a_terminal(relayed: Relayed) -> None:
    reader, terminal = os.openpty()
    relay = StderrRelay(logging.Formatter(), fd=terminal)
    with relay.terminal() or open(os.devnull, "w") as drawn_on:
        drawn_on.write("half")
    assert os.read(reader, 4) == b"half"
    assert relayed.relay.terminal() is None
    relay.close(30)
    for descriptor in (reader, terminal, relay.original):
        os.close(descriptor)
    relayed.read()
