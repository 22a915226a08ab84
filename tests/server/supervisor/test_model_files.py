"""Models whose weights are pickles, at a start: when they are fetched and converted, what is said if they can't be."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.convert.conversion import ConversionReport, Report
from engine.convert.plan import ConversionPlan
from engine.store.model_source import ResolvedModel
from engine.types import ModelError
from server.features.convert import start
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor import model_files
from server.supervisor.model_files import NotConvertedError, find_files
from tests.engine.folder_files import write
from tests.engine.tensorrt_llm.quantize.models import end_of_processes

COMMIT = "0" * 40


@contextlib.contextmanager
def unseen(title: str) -> Iterator[Report]:
    yield lambda num_done, total: None


@pytest.fixture(autouse=True)
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """Stands in for the converting process: what it converted."""
    jobs: list[tuple[str, ...]] = []

    def fill(folder: Path, planned: ConversionPlan, *, max_shard_bytes: int, report: Report) -> ConversionReport:
        jobs.append(tuple(target.stem for target in planned.targets))
        for name, path in planned.copied.items():
            shutil.copyfile(path, folder / name)
        save_file({"a": torch.ones(3)}, folder / "model.safetensors")
        return ConversionReport((), without_network=True)

    monkeypatch.setattr(start, "fill", fill)
    yield jobs
    end_of_processes(tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "my model" / "config.json", {"model_type": "bert"})
    (tmp_path / "my model" / "pytorch_model.bin").write_bytes(b"pickled")
    return tmp_path / "my model"


def found(model_id: str | Path, cache: Path | str, *, convert: str = "auto", **others: Any) -> ResolvedModel:
    model = ModelSettings(model_id=str(model_id), convert=convert)
    settings = Settings(models=(model,), compiled_cache=str(cache))
    return find_files(model, settings, **{"needs_weights": True, "progress": unseen, **others})


def refusal(*arguments: Any, **others: Any) -> str:
    with pytest.raises(ModelError) as caught:
        found(*arguments, **others)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_start_takes_the_copy(folder: Path, tmp_path: Path, child: list[tuple[str, ...]]) -> None:
    cache = tmp_path / "cache"
    assert str(folder) in refusal(folder, cache, progress=None)

    first = found(folder, cache)

    assert first.path.parents[1] == cache / "converted"
    assert first.source == "local folder, pytorch_model.bin converted to safetensors"
    assert found(folder, cache) == found(folder, cache, progress=None) == first
    assert child == [("model",)]


def test_what_needs_no_conversion_is_as_ever(folder: Path, tmp_path: Path, child: list[tuple[str, ...]]) -> None:
    expected = ResolvedModel(folder, "local folder", "")
    assert found(folder, "off", convert="never") == expected  # reading it says what is wrong
    assert found(folder, "off", needs_weights=False) == expected
    (folder / "model.safetensors").touch()
    assert found(folder, "off") == expected
    assert child == []


def test_where_no_copy_can_be_kept_the_command_is_named(folder: Path, tmp_path: Path) -> None:
    command = f"embedline convert '{folder}' OUT"
    assert refusal(folder, "off").endswith(f"(--compiled-cache is off): {command}")
    (tmp_path / "a file").touch()
    message = refusal(folder, tmp_path / "a file")
    assert "--compiled-cache can't be written to: " in message
    assert message.endswith(command)
    with pytest.raises(NotConvertedError, match="a start converts them into its cache first"):
        found(folder, tmp_path / "cache", progress=None)


@pytest.mark.parametrize(("convert", "wanted"), [("auto", True), ("never", False)])
def test_pickles_are_fetched_where_there_is_nothing_else(
    convert: str, wanted: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pytorch_model.bin").unlink()
    asked = []

    def resolve(model_id: str, revision: str | None, **others: Any) -> ResolvedModel:
        asked.append((revision, others.get("more", ())))
        if "more" in others:
            (folder / "pytorch_model.bin").write_bytes(b"pickled")
        return ResolvedModel(folder, "hub", COMMIT)

    monkeypatch.setattr(model_files, "resolve", resolve)
    source = found("a/model", tmp_path / "cache", convert=convert).source
    more = ("pytorch_model*.bin", "sparse_linear.pt", "colbert_linear.pt")
    assert asked == ([(None, ()), (COMMIT, more)] if wanted else [(None, ())])
    assert source == ("hub, pytorch_model.bin converted to safetensors" if wanted else "hub")
