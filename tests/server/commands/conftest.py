"""A machine and a model for `embedline doctor`."""

from pathlib import Path

import pytest

from engine.store import hub
from tests.engine.model.detection import shapes
from tests.engine.tensorrt_llm.header_models import write_model
from tests.server.commands.doctor_runs import Computer


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    """Without a GPU, and with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "fetch", lambda *arguments, **more: pytest.fail("the hub was asked"))
    for name in ("MODEL_ID", "EMBEDLINE_ENGINE", "EMBEDLINE_DEVICES", "EMBEDLINE_QUANTIZATION", "DTYPE", "POOLING"):
        monkeypatch.delenv(name, raising=False)
    return Computer(monkeypatch)


@pytest.fixture
def qwen3(tmp_path: Path) -> Path:
    """An embedding model that pools by the last token."""
    folder = tmp_path / "qwen3"
    write_model(folder)
    shapes.tokenizer(folder)
    return folder
