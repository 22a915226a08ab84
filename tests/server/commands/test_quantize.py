"""`embedline quantize` as it is called: what it prints, one line for what is wrong, exit codes, and a SIGKILL."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from engine.tensorrt_llm.quantize.job import Done
from engine.types import ModelError
from server import cli
from server.features.quantize import quantize
from tests.engine.tensorrt_llm.quantize.models import KILL_AT_A_WRITE, contents, quantized, wide
from tests.structure.sources import ROOT

# The command, killed when some of the tensors have been written.
KILLED = f"{KILL_AT_A_WRITE}\nfrom server import cli\ncli.main()"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide(tmp_path_factory.mktemp("model") / "a model")


def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    program = ["-m", "embedline"] if code is None else ["-c", code]
    command = [sys.executable, "-P", *program, "quantize", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.full
@pytest.mark.holds("A quantization can be interrupted anywhere")
def test_killed_and_called_again_it_prints_what_each_tensor_lost(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    killed = run(str(model), str(out), code=KILLED)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    ended = run(str(model), str(out))

    assert (ended.returncode, ended.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    folder, *tensors, in_fp8, plain, sizes, others = ended.stdout.splitlines()
    assert folder == str(out)
    assert len(tensors) == 14
    assert all(re.fullmatch(r"  layers\.[01]\.\w+\.\w+_proj\.weight: 2\.[5-7]\d %", line) for line in tensors)
    assert re.fullmatch(r"  14 tensors in FP8, relative RMS error 2\.\d\d % to 2\.\d\d %", in_fp8)
    assert plain == "  10 tensors as they were"
    assert re.fullmatch(r"  \d\.\d MiB of weights have become \d\.\d MiB", sizes)
    assert others == "  0 more files as they were"
    assert contents(out) == contents(quantized(model, tmp_path / "whole").folder)


def test_what_is_fetched_and_that_out_is_checked_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def resolve(*names: str, cache_dir: Path, token: str) -> NoReturn:
        asked.extend([*names, cache_dir, token])
        raise ModelError("nothing is there")

    monkeypatch.setattr("engine.store.model_source.resolve", resolve)
    flags = ("--revision", "v1", "--hf-token", "hf", "--huggingface-hub-cache", "cache")
    assert exit_code(monkeypatch, "a/model", str(tmp_path / "out"), *flags) == 2
    assert asked == ["a/model", "v1", Path("cache"), "hf"]
    (tmp_path / "mine").touch()
    assert exit_code(monkeypatch, "a/model", str(tmp_path)) == 2
    assert exit_code(monkeypatch, "a/model") == 2
    assert exit_code(monkeypatch, "a/model", "out", "--port", "1") == 2
    assert len(asked) == 4
    messages = capsys.readouterr().err.splitlines()
    for message, words in zip(messages, ("nothing is there", "is not overwritten", "OUT", "--port"), strict=True):
        assert words in message


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["embedline", "quantize", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_what_is_wrong_is_one_line(model: Path, tmp_path: Path) -> None:
    done = quantized(model, tmp_path / "out").folder

    ended = run(str(done), str(tmp_path / "again"))

    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"embedline: the weights are stored quantized already[^\n]+\n", ended.stderr)
    assert sorted(tmp_path.iterdir()) == [done]


def test_tensors_that_lost_more_are_told_of(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Done(tmp_path / "out", {"a": 0.0312, "b": 0.02}, 1, 3 << 20, 2 << 20, 4)
    monkeypatch.setattr("engine.tensorrt_llm.quantize.job.quantize", lambda *_, **__: done)

    quantize(str(model), str(tmp_path / "out"))

    captured = capsys.readouterr()
    assert captured.out.splitlines()[1:3] == ["  a: 3.12 %", "  b: 2.00 %"]
    assert captured.err.startswith("embedline: 1 of them lost more than 3 %")
    assert captured.err.count("\n") == 1
