"""What the tests of cached copies share."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.tensorrt_llm.quantize import job
from engine.tensorrt_llm.quantize.job import Quantized, quantize_rows
from tests.engine.folder_files import write
from tests.engine.tensorrt_llm.quantize.models import contents, end_of_processes, quantized, wide


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files of an embedding model around it."""
    folder = wide(tmp_path_factory.mktemp("model") / "qwen3", num_hidden_layers=1)
    names = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    write(
        folder / "modules.json",
        [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in names.items()],
    )
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    activation = "torch.nn.modules.linear.Identity"
    dense = {"in_features": 128, "out_features": 128, "bias": False, "activation_function": activation}
    write(folder / "2_Dense" / "config.json", dense)
    write(folder / "tokenizer_config.json", {"model_max_length": 64})
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    save_file({"linear.weight": torch.ones(128, 128)}, folder / "2_Dense" / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def whole(embedder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the command makes of it."""
    return contents(quantized(embedder, tmp_path_factory.mktemp("whole") / "out").folder)


@pytest.fixture
def folder(embedder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(embedder, tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "cache")
    end_of_processes(tmp_path / "cache")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="embedline.engine")
    return caplog


@pytest.fixture
def strips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each strip of rows that was quantized."""
    found: list[int] = []

    def counted(rows: torch.Tensor) -> Quantized:
        found.append(len(rows))
        return quantize_rows(rows)

    monkeypatch.setattr(job, "quantize_rows", counted)
    return found
