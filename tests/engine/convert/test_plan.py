"""What of a folder is converted, copied and left out; what makes a folder one not to be trusted."""

import os
from pathlib import Path

import pytest

from engine.convert.plan import plan
from engine.types import ModelError
from tests.engine import engines
from tests.engine.folder_files import write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "model" / "config.json", {})
    (tmp_path / "model" / "pytorch_model.bin").touch()
    return tmp_path / "model"


def refusal(folder: Path) -> str:
    return engines.refusal(lambda: plan(folder))


def stems(folder: Path) -> list[str]:
    return [target.stem for target in plan(folder).targets]


def test_only_data_is_copied(folder: Path) -> None:
    for name in (
        "vocab.txt",
        "spiece.model",
        "LICENSE",
        "README.md",
        "1_Pooling/config.json",
        "1_Dense/model.safetensors",
    ):
        write(folder / name, {})
    for name in (
        "modeling.py",
        ".gitattributes",
        "tf_model.h5",
        "onnx/config.json",
        ".git/config.json",
        "checkpoint-5/config.json",
    ):
        write(folder / name, {})
    assert sorted(plan(folder).copied) == [
        "1_Dense/model.safetensors",
        "1_Pooling/config.json",
        "LICENSE",
        "README.md",
        "config.json",
        "spiece.model",
        "vocab.txt",
    ]


def test_what_has_its_safetensors_is_not_converted(folder: Path) -> None:
    for name in ("sparse_linear.pt", "colbert_linear.pt", "colbert_linear.safetensors", "optimizer.pt", "model.pt"):
        (folder / name).touch()
    assert stems(folder) == ["model", "sparse_linear"]
    write(folder / "model.safetensors.index.json", {"weight_map": {}})
    assert stems(folder) == ["sparse_linear"]
    left_out = ("colbert_linear.pt", "model.pt", "optimizer.pt", "pytorch_model.bin")
    assert plan(folder).left_out == left_out
    (folder / "sparse_linear.pt").unlink()
    assert "has nothing to convert" in refusal(folder)


def test_a_folder_of_something_else_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "not a model folder" in refusal(folder)


@pytest.mark.holds("Pickles are read only by one isolated process")
@pytest.mark.parametrize("name", ["vocab.txt", "sparse_linear.pt", "config.json", "2_Dense"])
@pytest.mark.parametrize("target", ["outside", "model-2/outside", "/proc/self/environ"])
def test_a_link_out_of_the_folder_is_refused(folder: Path, name: str, target: str) -> None:
    (folder.parent / "outside").mkdir()
    write(folder.parent / "model-2" / "outside", {})
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder.parent / target)
    assert refusal(folder) == f"{folder / name} is a link out of the model's folder"


def test_a_link_inside_of_the_folder_is_followed(folder: Path) -> None:
    (folder / "weights.real").touch()
    (folder / "pytorch_model.bin").unlink()
    (folder / "pytorch_model.bin").symlink_to("weights.real")
    (target,) = plan(folder).targets
    assert target.sources == {"pytorch_model.bin": folder / "weights.real"}


def test_blobs_are_only_those_of_a_snapshot(folder: Path) -> None:
    write(folder.parent / "blobs" / "0", {})
    for name, is_trusted in (("snapshots", True), ("others", False)):
        model = folder.rename(folder.parent / name) / "0123"
        write(model / "config.json", {})
        (model / "pytorch_model.bin").unlink(missing_ok=True)
        (model / "pytorch_model.bin").symlink_to("../../blobs/0")
        assert is_trusted is ("out of the model's folder" not in refusal_or_none(model))
        folder = model.parent
        link = folder.parent / f"a link to {name}"
        link.symlink_to(model)
        assert refusal_or_none(link).replace(str(link), "") == refusal_or_none(model).replace(str(model), "")


def refusal_or_none(folder: Path) -> str:
    try:
        plan(folder)
    except ModelError as error:
        return str(error)
    return ""


def test_links_that_lead_nowhere_and_what_is_no_file_are_refused(folder: Path) -> None:
    (folder / "vocab.txt").symlink_to("vocab.txt")
    assert "is a broken link" in refusal(folder)
    (folder / "vocab.txt").unlink()
    os.mkfifo(folder / "vocab.txt")
    assert "is not a file" in refusal(folder)


def test_a_name_that_would_move_the_cursor_is_not_shown(folder: Path) -> None:
    (folder / "a\x1b[2Jb.txt").touch()
    assert "\x1b" not in refusal(folder)


@pytest.mark.parametrize("shard", ["../secret.bin", "2_Dense/a.bin", "/etc/passwd", 7, None])
def test_shards_lie_beside_their_index(folder: Path, shard: object) -> None:
    (folder / "pytorch_model.bin").unlink()
    (folder.parent / "secret.bin").touch()
    write(folder / "2_Dense" / "a.bin", {})
    write(folder / "pytorch_model.bin.index.json", {"weight_map": {"a": shard}})
    assert "lacks" in refusal(folder)


def test_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.convert.plan._MAX_FILES", 1)
    assert "more than 1 files" in refusal(folder)
