"""`embedline quantize` as it is called: what it prints, one line for what is wrong, exit codes, and a SIGKILL."""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from engine.tensorrt_llm.quantize.job import Done
from engine.types import ModelError
from server.features.quantize import quantize
from tests.engine.tensorrt_llm.quantize.models import KILL_AT_A_WRITE, contents, quantized, wide
from tests.server.commands.doctor_runs import ended as ended_of

# The command, killed when some of the tensors have been written.
KILLED = f"{KILL_AT_A_WRITE}\nfrom server import cli\ncli.main()"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide(tmp_path_factory.mktemp("model") / "a model")


@pytest.mark.full
@pytest.mark.holds("A quantization can be interrupted anywhere")
def test_killed_and_called_again_it_prints_what_each_tensor_lost(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    killed = ended_of("quantize", str(model), str(out), code=KILLED)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    ended = ended_of("quantize", str(model), str(out))

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
    tmp_path: Path,
    called: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    def resolve(*names: str, cache_dir: Path, token: str) -> NoReturn:
        asked.extend([*names, cache_dir, token])
        raise ModelError("nothing is there")

    monkeypatch.setattr("engine.store.model_source.resolve", resolve)
    flags = ("--revision", "v1", "--hf-token", "hf", "--huggingface-hub-cache", "cache")
    assert called("quantize", "a/model", str(tmp_path / "out"), *flags) == 2
    assert asked == ["a/model", "v1", Path("cache"), "hf"]
    (tmp_path / "mine").touch()
    assert called("quantize", "a/model", str(tmp_path)) == 2
    assert called("quantize", "a/model") == 2
    assert called("quantize", "a/model", "out", "--port", "1") == 2
    assert len(asked) == 4
    messages = capsys.readouterr().err.splitlines()
    for message, words in zip(messages, ("nothing is there", "is not overwritten", "OUT", "--port"), strict=True):
        assert words in message


def test_what_is_wrong_is_one_line(
    model: Path, tmp_path: Path, called: Callable[..., object], capfd: pytest.CaptureFixture[str]
) -> None:
    done = quantized(model, tmp_path / "out").folder

    assert called("quantize", str(done), str(tmp_path / "again")) == 2

    said = capfd.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"embedline: the weights are stored quantized already[^\n]+\n", said.err)
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
