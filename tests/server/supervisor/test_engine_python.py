"""What is asked of another interpreter before engine processes run under it."""

import sys
from pathlib import Path

import pytest

from engine.machine.cuda_driver import Cuda, Gpu
from engine.types import ModelError
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor import model_plan
from server.supervisor.model_plan import has_tensorrt_llm_alone, plan_model
from tests.server_e2e.expected import minilm

H200 = Gpu(0, "NVIDIA H200", (9, 0), 1 << 37)


@pytest.fixture
def with_tensorrt_llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter that finds a package of that name."""
    package = tmp_path / "packages" / "tensorrt_llm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('not to be imported')\n")
    return program(tmp_path / "python", f'PYTHONPATH={package.parent} exec {sys.executable} "$@"\n')


def program(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\n{line}")
    path.chmod(0o755)
    return str(path)


def test_what_it_has(with_tensorrt_llm: str, tmp_path: Path) -> None:
    assert has_tensorrt_llm_alone(with_tensorrt_llm)
    other = program(tmp_path / "other", f'exec {sys.executable} "$@"\n')
    model_plan.check_engine_python(other)
    assert not has_tensorrt_llm_alone(other)
    assert not has_tensorrt_llm_alone(sys.executable)


@pytest.mark.parametrize("line", ["echo {}", "echo []", 'echo \'{"version": [3, 9], "has": ["numpy"]}\'', "exit 1"])
def test_no_fit_interpreter(tmp_path: Path, line: str) -> None:
    with pytest.raises(SettingsError, match="--engine-python must be Python"):
        model_plan.check_engine_python(program(tmp_path / "python", f"{line}\n"))


def planned(python: str, device: str, engine: str = "auto") -> tuple[str, str]:
    model = ModelSettings(model_id=str(minilm()), devices=device, engine=engine)
    plan = plan_model(model, Settings(engine_python=python), cuda=lambda: Cuda((H200,)))
    return plan.engine, plan.reason


@pytest.mark.holds("TensorRT-LLM")
def test_auto_is_tensorrt_llm_alone(with_tensorrt_llm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_plan, "_ask", lambda *_: None)

    engine, reason = planned(with_tensorrt_llm, "cuda")
    assert engine == "tensorrt-llm"
    assert "the cuda image has the others" in reason
    assert planned(with_tensorrt_llm, "cuda", "fused")[0] == "fused"
    assert planned(with_tensorrt_llm, "cpu", "transformers")[0] == "transformers"
    with pytest.raises(ModelError, match="which needs a GPU, and packages of its own"):
        planned(with_tensorrt_llm, "cpu")


def test_what_it_can_not_serve_is_said_before_anything_is_started(with_tensorrt_llm: str) -> None:
    with pytest.raises(ModelError, match=r"no class for the architecture .bert.*, in the cuda image, serves it"):
        planned(with_tensorrt_llm, "cuda")
