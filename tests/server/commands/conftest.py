"""A machine and a model for `embedline doctor`, and commands as they are called."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.machine.cuda_driver import Cuda
from engine.store import hub
from server import cli
from server.commands.doctor import doctor
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.engine.model.detection import shapes
from tests.engine.tensorrt_llm.header_models import write_model
from tests.server.commands.doctor_runs import Computer, Examined


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    """Without a GPU, and with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "fetch", lambda *arguments, **more: pytest.fail("the hub was asked"))
    for name in ("MODEL_ID", "EMBEDLINE_ENGINE", "EMBEDLINE_DEVICES", "EMBEDLINE_QUANTIZATION", "DTYPE", "POOLING"):
        monkeypatch.delenv(name, raising=False)
    return Computer(monkeypatch)


@pytest.fixture
def examined(capsys: pytest.CaptureFixture[str]) -> Examined:
    """The exit code of `embedline doctor` for one model, and its JSON."""

    def run(*, python: str = sys.executable, **model: Any) -> Any:
        words: dict[str, Any] = {name: str(value) for name, value in model.items()}
        code = doctor(Settings(models=(ModelSettings(**words),), engine_python=python), as_json=True)
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models would be kept. And no GPU for `inspect` and `verify`, whatever this machine has."""
    for module in ("server.commands.inspect", "server.features.verify.comparison"):
        monkeypatch.setattr(f"{module}.find_cuda", lambda _: Cuda(why_none="there is no CUDA driver here"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "embedline"


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """The exit code of `embedline …` in this process."""

    def call(*arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", ["embedline", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    return call


@pytest.fixture
def qwen3(tmp_path: Path) -> Path:
    """An embedding model that pools by the last token."""
    folder = tmp_path / "qwen3"
    write_model(folder)
    shapes.tokenizer(folder)
    return folder
