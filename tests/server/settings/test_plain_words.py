"""What the command line of `serve` is read as without typer is what typer reads, and the rest is left to typer."""

import subprocess
import sys

import pytest

from server import program
from server.cli import plain_words
from tests.server.settings.cli_runs import FLAGS, Ran, Run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--engine fake --port=0 -p 8081 --json-output --no-auto-truncate",
        "--port 1 --port 2 --hostname= --host 0.0.0.0 --cors-allow-origin https://a --cors-allow-origin https://b",
        "--engine fake --model-id a --served-model-name=x --model-id b --served-model-name y=z",
        "--log-level WARNING --drain-delay 0.5 --max-batch-tokens auto",
        "org/model",
        "--json-output ./a=b --engine fake --dtype fp16",
    ],
)
def test_plain_words_are_read_as_typer_reads_them(run: Run, words: str) -> None:
    arguments = words.split()
    assert plain_words(arguments, FLAGS) is not None
    with pytest.raises(Ran) as by_typer:
        program.make_app(only="serve")(["serve", *arguments], prog_name="embedline", standalone_mode=False)
    assert run.settings(*arguments) == by_typer.value.settings


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "-h",
        "--engine",
        "--engine --port 0",
        "--port -1",
        "serve",
        "a b",
        "a --model-id a",
        "--what 1",
        "--json-output=x",
        "-p=1",
        "--",
    ],
)
def test_what_is_not_plain_is_left_to_typer(words: str) -> None:
    assert plain_words(words.split(), FLAGS) is None


def test_neither_a_plain_start_nor_what_it_imports_needs_typer() -> None:
    code = "import sys, server.cli, server.commands.serve; sys.exit('typer' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ctrl_c_ends_a_start_also_where_python_would_pass_over_an_exception() -> None:
    """As in the callbacks of locks while modules are imported."""
    code = """
import sys
sys.argv = ["embedline", "serve"]
import embedline.__main__ as launcher, server.cli
def main():
    import signal, weakref
    class Lock: pass
    lock = Lock()
    seen = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))
    del lock
server.cli.main = main
launcher.main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def test_ctrl_c_during_a_start_prints_nothing() -> None:
    code = """
import embedline.__main__ as launcher, server.cli
def main():
    raise KeyboardInterrupt
server.cli.main = main
launcher.main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
