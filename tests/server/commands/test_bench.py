"""`embedline bench`: flags become options, what is wrong is one line."""

import dataclasses
import socket
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from embedline.bench.options import Options
from server import cli
from server.features import bench as bench_command


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options of runs that were not made."""
    runs: list[Options] = []

    def run(options: Options) -> int:
        runs.append(options)
        return 0

    monkeypatch.setattr(bench_command, "run", run)
    return runs


def call(*arguments: str) -> int | str | None:
    """The exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["embedline", "bench", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    return caught.value.code


def test_without_flags_the_options_have_their_defaults(seen: list[Options]) -> None:
    assert call("http://localhost:1") == 0
    assert seen == [Options(url="http://localhost:1")]


def test_every_option_has_a_flag(seen: list[Options]) -> None:
    flags = (
        "--concurrency 3 --batch-size 4 --rate 5 --arrivals fixed --duration 6 --requests 7 --warmup 8 --timeout 9 "
        "--texts a --model m --api-key k --route /embed --encoding bytes --class bulk --seed 10 --json b"
    )
    assert call("localhost:1", *flags.split()) == 0
    [options] = seen
    expected = Options(
        url="localhost:1",
        concurrency=3,
        batch_size=4,
        rate=5.0,
        arrivals="fixed",
        duration=6.0,
        requests=7,
        warmup=8.0,
        timeout=9.0,
        texts=Path("a"),
        model="m",
        api_key="k",
        route="/embed",
        encoding="bytes",
        request_class="bulk",
        seed=10,
        json=Path("b"),
    )
    assert options == expected
    defaults = Options(url="localhost:2")
    assert all(getattr(options, field.name) != getattr(defaults, field.name) for field in dataclasses.fields(Options))


def test_an_open_loop_may_have_many_in_flight(seen: list[Options]) -> None:
    assert call("localhost:1", "--rate", "100") == 0
    assert seen[0].concurrency == 4096


@pytest.mark.parametrize("flag", ["--concurrency", "--rate", "--duration"])
def test_what_is_wrong_is_one_line_that_names_the_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("localhost:1", flag, "0") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"embedline: {flag} ")


def test_a_server_that_is_not_there_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        assert call(f"localhost:{bound.getsockname()[1]}") == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_flag_has_a_help_text() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(bench_command.bench)
    options = [parameter for parameter in get_command(app).params if parameter.name != "help"]
    assert len(options) == len(dataclasses.fields(Options))
    assert all(getattr(parameter, "help", None) for parameter in options)
