"""What a file may hold, told in one line that repeats nothing of it. In this process; none of these may run code."""

import copy
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.convert import pickle_to_safetensors
from tests.engine import engines
from tests.engine.convert.pickles import Touch

SECRET = "sesame"


def refusal(file: Path) -> str:
    message = engines.refusal(lambda: pickle_to_safetensors.load(file, "a.bin"))
    assert message.startswith("a.bin is ")
    assert SECRET not in message
    return message


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ([torch.ones(1)], "tensors by name"),
        (torch.ones(1), "tensors by name"),
        ({7: torch.ones(1)}, "tensors by name"),
        ({SECRET: 7}, "not all that it holds are tensors"),
        ({"state_dict": {SECRET: torch.ones(1)}}, "not all that it holds are tensors"),
        ({SECRET: torch.ones(2).to_sparse()}, "of a kind"),
        ({SECRET: torch.ones(2, dtype=torch.complex128)}, "of a kind"),
        ({SECRET: torch.ones(2, device="meta")}, "of a kind"),
        (torch.nn.Linear(2, 2), "more than tensors"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_anything_but_tensors_by_name_is_refused(tmp_path: Path, value: Any, part: str) -> None:
    torch.save(value, tmp_path / "a.bin")
    assert part in refusal(tmp_path / "a.bin")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", SECRET.encode() * 99, b"\x80\x02", b"PK\x03\x04" + b"\0" * 99])
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    refusal(tmp_path / "a.bin")


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    for zipped in (True, False):
        torch.save({"a": torch.ones(1000)}, tmp_path / "a.bin", _use_new_zipfile_serialization=zipped)
        content = (tmp_path / "a.bin").read_bytes()
        (tmp_path / "a.bin").write_bytes(content[: len(content) // 2])
        refusal(tmp_path / "a.bin")


def test_a_bare_pickle_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(pickle.dumps(Touch(tmp_path / "canary"), protocol=2))
    assert "more than tensors" in refusal(tmp_path / "a.bin")
    assert not (tmp_path / "canary").exists()


def test_a_torchscript_archive_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("archive/constants.pkl", pickle.dumps(()))
        archive.writestr("archive/data.pkl", pickle.dumps(Touch(tmp_path / "canary")))
        archive.writestr("archive/version", "3")
    with pytest.warns(UserWarning, match="TorchScript"):
        assert "without running code" in refusal(tmp_path / "a.bin")
    assert not (tmp_path / "canary").exists()


def test_parts_that_overlap_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(100_000)}, tmp_path / "a.bin")
    with zipfile.ZipFile(tmp_path / "a.bin", "a") as archive:
        largest = max(archive.infolist(), key=lambda part: part.file_size)
        twin = copy.copy(largest)
        twin.filename += "0"
        archive.filelist.append(twin)
        archive.writestr("archive/more", b"")
    assert "overlap" in refusal(tmp_path / "a.bin")


def test_a_pickle_as_large_as_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "a.bin")
    monkeypatch.setattr(pickle_to_safetensors, "_MAX_PICKLE", 10)
    assert "beside tensors" in refusal(tmp_path / "a.bin")


def test_memory_that_runs_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "a.bin")
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        monkeypatch.setattr(torch, "load", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        assert "far more memory" in refusal(tmp_path / "a.bin")
