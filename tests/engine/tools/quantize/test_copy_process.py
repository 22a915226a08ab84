"""The copy made by a child process: the same copy, one line for what goes wrong, and kept while this process lives."""

import sys
from pathlib import Path

import pytest

from engine.tools.quantize import copy_process
from engine.tools.quantize.copy_process import block_fp8
from engine.types import ModelError
from tests.engine.tools.quantize.models import contents, copies


def made(folder: Path, cache: str | None, python: str = sys.executable) -> Path:
    return block_fp8(folder, cache_dir=cache, python=python, log_level="info", json_output=False)


def test_it_is_what_the_command_makes(
    embedder: Path, whole: dict[str, bytes], cache: str, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = made(embedder, cache)
    assert contents(copy) == whole
    assert copies(cache) == [copy.name]
    said = capfd.readouterr()
    assert said.out == ""
    begun, ended = said.err.splitlines()
    assert f" INFO fp8 copy: quantizing {embedder} to block FP8" in begun
    assert f" INFO fp8 copy: quantized {embedder} in" in ended


def test_what_goes_wrong_is_one_line(
    embedder: Path, tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"^--quantization fp8 keeps an FP8 copy of the model"):
        made(embedder, None)
    with pytest.raises(ModelError, match=r"^the FP8 copy of the model can't be made: .*No such file"):
        made(embedder, cache, python=str(tmp_path / "python"))
    monkeypatch.setattr(copy_process, "_CHILD", "no_such_module")
    with pytest.raises(ModelError, match=r"ended early \(exit code 1\)$"):
        made(embedder, cache)
