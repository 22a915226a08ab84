"""`embedline doctor` without a GPU: text and JSON, other Pythons, caches, exit codes."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from server.commands import doctor as doctor_machine
from server.commands.doctor import doctor
from server.commands.probe import Environment
from server.settings.flag import SettingsError
from server.settings.settings import Settings
from server.supervisor import model_plan
from tests.server.commands.doctor_runs import H100, Computer, Examined, able, reasons

NUMPY_ALONE = '#!/bin/sh\nPYTHONPATH={} exec {} -S "$@"\n'

pytestmark = pytest.mark.usefixtures("computer")


@pytest.mark.holds("TensorRT-LLM")
def test_the_default_model_without_a_gpu(examined: Examined) -> None:
    code, found = examined()

    assert (code, found["engine"], found["can_serve"]) == (0, "openvino", True)
    assert found["reason"] == "--engine auto takes openvino, on cpu"
    assert able(found) == {"openvino", "transformers"}
    assert reasons(found, "fused") == "it needs a GPU: there is no CUDA driver here"
    assert "static embeddings alone" in reasons(found, "static")
    for why in ("it needs a GPU", "tensorrt_llm is not installed", "no class for the architecture 'bert'"):
        assert why in reasons(found, "tensorrt-llm")
    assert found["model"]["architecture"] == "bert"
    assert found["machine"]["cuda_driver"] == "none: there is no CUDA driver here"
    assert any(package.startswith("torch ") for package in found["machine"]["python_packages"])


def test_text_has_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert doctor(Settings(), as_json=False) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line in ("this machine", "the model", "engines", "result")] == [
        "this machine",
        "the model",
        "engines",
        "result",
    ]
    assert f"compiled cache {tmp_path / 'cache' / 'embedline'} (can be written to)" in lines
    assert "cuda driver none: there is no CUDA driver here" in lines
    assert "gpus none" in lines
    assert "openvino can serve it, on cpu" in lines
    assert "fused no: it needs a GPU: there is no CUDA driver here" in lines
    assert lines[-1] == "--engine auto takes openvino, on cpu"
    assert any(re.fullmatch(r"memory [\d,]+ MiB \(what this process may use\)", line) for line in lines)


def test_another_python_is_asked(examined: Examined, tmp_path: Path) -> None:
    python, packages = tmp_path / "python", tmp_path / "packages"
    packages.mkdir()
    for folder in Path(np.__file__).parents[1].glob("numpy*"):
        (packages / folder.name).symlink_to(folder)
    python.write_text(NUMPY_ALONE.format(packages, sys.executable))
    python.chmod(0o755)

    code, found = examined(python=str(python))

    assert code == 1
    assert found["machine"]["engine_python_packages"] == [f"numpy {np.__version__}"]
    assert reasons(found, "transformers") == "transformers and torch not installed: pip install 'embedline[server]'"
    assert "tensorrt_llm is not installed for" in reasons(found, "tensorrt-llm")
    assert any(package.startswith("torch ") for package in found["machine"]["python_packages"])


def test_the_librarys_own_python(
    examined: Examined,
    computer: Computer,
    monkeypatch: pytest.MonkeyPatch,
    qwen3: Path,
) -> None:
    """As in the tensorrt-llm image: auto means that engine there, and the others lack what they need."""
    computer.has(H100)
    there = Environment("/bin/true", "3.12.3", {"tensorrt_llm": "1.4.0rc1"})
    monkeypatch.setattr(doctor_machine, "_asked", lambda python: there)
    monkeypatch.setattr(model_plan, "has_tensorrt_llm_alone", lambda python: True)

    code, found = examined(python="/bin/true", model_id=qwen3, pooling="last-token")

    assert (code, found["engine"], able(found)) == (0, "tensorrt-llm", {"tensorrt-llm"})
    assert "--engine-python has TensorRT-LLM" in found["reason"]
    assert found["machine"]["engine_python"] == "3.12.3"


def test_a_python_that_is_none() -> None:
    with pytest.raises(SettingsError, match="--engine-python must be Python"):
        doctor(Settings(engine_python="/bin/true"), as_json=False)


def test_a_cache_that_can_not_be_written_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(compiled_cache=str(tmp_path / "file" / "cache"))

    assert doctor(settings, as_json=True) == 0

    machine = json.loads(capsys.readouterr().out)["machine"]
    assert machine["compiled_cache"] is None
    assert "--compiled-cache can't be written to" in machine["sources"]["compiled_cache"]


def test_the_command(
    called: Callable[..., object], capsys: pytest.CaptureFixture[str], computer: Computer, qwen3: Path
) -> None:
    assert called("doctor", "--model-id", str(qwen3), "--pooling", "last-token", "--engine", "fused", "--json") == 1
    assert json.loads(capsys.readouterr().out)["engine"] is None
    assert called("doctor", "--port", "1") == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.holds("TensorRT-LLM")
def test_of_several_models_it_says_which_it_looked_at(
    called: Callable[..., object], capsys: pytest.CaptureFixture[str], computer: Computer, qwen3: Path, tmp_path: Path
) -> None:
    config = tmp_path / "models.toml"
    config.write_text(f'[[model]]\nmodel-id = "{qwen3}"\npooling = "last-token"\n[[model]]\nmodel-id = "org/b"\n')

    assert called("doctor", "--config", str(config), "--json") == 0
    found = json.loads(capsys.readouterr().out)["model"]
    assert (found["name"], found["others"]) == (str(qwen3), ["org/b"])
    assert "not looked at" in found["sources"]["others"]
