"""How far something is: a bar or one line on a terminal, elsewhere a line every ten seconds."""

import io
import re
import sys

import pytest

from embedline.progress import InputProgress, shown


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with shown("quantizing", clock=clock) as report:
        for clock.now, num_done in ((5.0, 10), (12.0, 20), (20.0, 30), (22.0, 40)):
            report(num_done, 40)
    assert capsys.readouterr().err == "embedline: quantizing: 50 %\nembedline: quantizing: 100 %\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with shown("quantizing") as report:
        report(3 << 20, 6 << 20)
        report(6 << 20, 6 << 20)
    assert re.search(r"quantizing.+6\.3/6\.3 MB", capsys.readouterr().err)


def test_a_terminal_without_rich_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(), list[str]()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with shown("converting", terminal=Terminal(), say=said.append, clock=clock) as report:
        clock.now = 10.0
        report(1, 0)
    assert said == ["converting: 100 %"]


def test_inputs_on_a_terminal_are_one_line() -> None:
    clock, stream = Clock(), Terminal()
    with InputProgress(1000, stream=stream, clock=clock) as progress:
        for clock.now in (1.0, 1.1, 2.0):  # the second is too soon
            progress.add(250)
    lines = stream.getvalue().replace("\x1b[K", "").split("\r")
    assert lines == [
        "",
        "250 of 1,000 inputs, 250/s, 3 s left",
        "750 of 1,000 inputs, 375/s, 1 s left",
        "750 of 1,000 inputs, 375/s, 1 s left\n",
    ]


def test_inputs_in_a_file_are_a_line_now_and_then() -> None:
    clock, stream = Clock(), io.StringIO()
    with InputProgress(None, stream=stream, clock=clock) as progress:
        for clock.now, num_inputs in ((5.0, 1), (11.0, 10)):
            progress.add(num_inputs)
    assert stream.getvalue() == "11 inputs, 1/s\n11 inputs, 1/s\n"
