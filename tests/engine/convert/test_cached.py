"""The copy in the cache: made once and by one process, anew where the model changed or the copy is damaged."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.convert.conversion import ConversionReport, Report
from engine.convert.plan import ConversionPlan, needed
from engine.model import model_folder
from engine.types import ModelError
from server.features.convert import start
from tests.engine.convert.pickles import pickled, small
from tests.engine.folder_files import change, write
from tests.engine.tensorrt_llm.quantize.models import contents, end_of_processes


@contextlib.contextmanager
def unseen(title: str) -> Iterator[Report]:
    yield lambda num_done, total: None


class Child:
    """Stands in for the converting process, which takes seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls = 0
        monkeypatch.setattr(start, "fill", self._fill)

    def _fill(self, folder: Path, planned: ConversionPlan, *, max_shard_bytes: int, report: Report) -> ConversionReport:
        self.num_calls += 1
        for name, path in planned.copied.items():
            shutil.copyfile(path, folder / name)
        save_file({"a": torch.ones(3)}, folder / "model.safetensors")
        return ConversionReport((), without_network=True)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    return Child(monkeypatch)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cache"
    end_of_processes(tmp_path / "cache")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "embedline.engine")
    return caplog


def copy_of(folder: Path, cache: Path, **others: Any) -> Path:
    planned = needed(folder)
    assert planned is not None
    found = start.converted(folder, planned, cache_dir=str(cache), **{"progress": unseen, **others})
    assert found is not None
    return found


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "converted").iterdir() if path.is_dir())


def test_it_is_made_once_and_keeps_the_models_name(
    tmp_path: Path, cache: Path, child: Child, log: pytest.LogCaptureFixture
) -> None:
    folder = small(tmp_path / "bge-reranker-v2-gemma")
    planned = needed(folder)
    assert planned is not None
    assert start.converted(folder, planned, cache_dir=str(cache), progress=None) is None
    assert not cache.exists()

    first = copy_of(folder, cache)

    assert first.name == "bge-reranker-v2-gemma"
    assert contents(first).keys() == {"config.json", "model.safetensors"}
    begun, ended = log.messages
    assert begun.startswith(f"converting pytorch_model.bin of {folder} (0 MiB) to safetensors, in {first.parent}; ")
    assert ended.startswith(f"converted {folder} in ")
    for progress in (unseen, None):
        assert copy_of(folder, cache, progress=progress) == first
    assert child.num_calls == 1


@pytest.mark.parametrize("what", ["weights", "config", "name", "format"])
def test_another_model_is_converted_anew(
    what: str, tmp_path: Path, cache: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small(tmp_path / "model")
    first = copy_of(folder, cache)
    match what:
        case "weights":
            torch.save({"a": torch.zeros(3)}, folder / "pytorch_model.bin")
        case "config":
            change(folder / "config.json", vocab_size=3)
        case "name":
            folder = folder.rename(tmp_path / "other")
        case "format":
            monkeypatch.setattr(start, "_FORMAT", start._FORMAT + 1)
    assert copy_of(folder, cache) != first
    assert child.num_calls == 2


def test_a_damaged_copy_is_made_anew(tmp_path: Path, cache: Path, child: Child) -> None:
    folder = small(tmp_path / "model")
    copy = copy_of(folder, cache)
    expected = contents(copy)
    os.truncate(copy / "model.safetensors", 20)
    assert contents(copy_of(folder, cache)) == expected
    assert child.num_calls == 2


def test_a_full_disk_is_said_with_the_numbers(
    tmp_path: Path, cache: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small(tmp_path / "model")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 200 << 20))
    with pytest.raises(ModelError, match=r"need 256 MiB in .*, where 200 MiB are free: .*embedline convert \S+ OUT$"):
        copy_of(folder, cache)
    assert (child.num_calls, entries(cache)) == (0, [])


@pytest.mark.parametrize("ending", [KeyboardInterrupt, ModelError("it is refused"), OSError(28, "No space left")])
def test_what_ends_it_leaves_nothing(ending: Any, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(folder: Path, *arguments: object, **others: object) -> None:
        (folder / "model.safetensors").write_text("unfinished")
        raise ending

    monkeypatch.setattr(start, "fill", fill)
    with pytest.raises((KeyboardInterrupt, ModelError)):
        copy_of(small(tmp_path / "model"), cache)
    assert entries(cache) == []


@pytest.mark.full
def test_bge_m3_with_its_heads(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "bge-m3"
    pickled("xlm-roberta", folder)
    write(folder / "tokenizer.json", {"model": {"vocab": [["<s>", 0.0]]}})
    for name, size in (("sparse_linear", 1), ("colbert_linear", 16)):
        torch.save(torch.nn.Linear(32, size).state_dict(), folder / f"{name}.pt")

    found = model_folder.read(copy_of(folder, cache))

    assert [type(head).__name__ for head in found.heads] == ["TokenWeights", "TokenVectors"]
