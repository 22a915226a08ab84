"""A quantized folder reads as the model it was made of, and comes out the same, wherever the work was cut off."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from engine import registry
from engine.fused.checkpoint import DequantizedCheckpoint, SafetensorsCheckpoint
from engine.model import quantization
from engine.model.quantization import StoredFp8
from engine.store.tensor_file import byte_ranges
from engine.tensorrt_llm.quantize import job
from engine.tensorrt_llm.quantize.job import quantize
from engine.types import EngineError, ModelError, OutputKind
from tests.engine.engines import load_options
from tests.engine.tensorrt_llm.quantize.models import contents, quantized, wide
from tests.engine.tiny_models import Reference, arbitrary, batch

CPU = torch.device("cpu")


class Killed(BaseException):
    """In place of the signal: nothing of ours catches it."""


class Fuse:
    """Lets so many calls that change files through, writes half of the next one, and ends everything there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_calls: int) -> None:
        self.rest = num_calls
        for owner, name in (
            (os, "pwrite"), (os, "ftruncate"), (os, "fsync"), (os, "open"), (shutil, "copyfile"), (shutil, "rmtree"),
            (Path, "mkdir"), (Path, "rename"), (Path, "write_text"), (Path, "unlink"), (Path, "rmdir"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self._cut_off(getattr(owner, name), halves=name == "pwrite"))

    def _cut_off(self, call: Callable[..., Any], *, halves: bool) -> Callable[..., Any]:
        def cut_off(first: Any, *arguments: Any, **others: Any) -> Any:
            self.rest -= 1
            if self.rest < 0:
                if halves:
                    content, *rest = arguments
                    call(first, content[: len(content) // 2], *rest)
                raise Killed
            return call(first, *arguments, **others)

        return cut_off


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide(tmp_path_factory.mktemp("model") / "qwen3")


@pytest.fixture
def sharded(model: Path, tmp_path: Path) -> Path:
    """In bfloat16, in shards of which each has weights and others, and with files of all kinds around them."""
    folder = tmp_path / "sharded"
    whole = AutoModel.from_pretrained(model, dtype=torch.bfloat16)
    whole.save_pretrained(folder, max_shard_size="300KB")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": torch.ones(128, 128)}, folder / "2_Dense" / "model.safetensors")
    for name in ("consolidated.safetensors", "model-of-before.safetensors", "pytorch_model.bin", "modeling.py"):
        (folder / name).write_text("")
    return folder


def stored(folder: Path) -> StoredFp8:
    found = quantization.check(folder, reads_fp8=True)
    assert found is not None
    return found


def dequantized(folder: Path) -> dict[str, torch.Tensor]:
    """As the fused engine reads it."""
    checkpoint = DequantizedCheckpoint(SafetensorsCheckpoint(folder, CPU), stored(folder))
    return {name: checkpoint.read(name) for name in checkpoint.names}


def relative_error(tensor: torch.Tensor, plain: torch.Tensor) -> float:
    return float((tensor.float() - plain.float()).norm() / plain.float().norm())


def test_each_tensor_dequantizes_to_what_it_was(model: Path, tmp_path: Path) -> None:
    done = quantized(model, tmp_path / "out")

    plain, read = load_file(model / "model.safetensors"), dequantized(done.folder)
    assert stored(done.folder).text == "FP8 (fp8, scales per block)"
    assert read.keys() == plain.keys()
    assert sorted(done.errors) == sorted(name for name in plain if name.endswith("proj.weight"))
    for name, tensor in plain.items():
        if name in done.errors:
            assert 0.02 < relative_error(read[name], tensor) < 0.03
            assert done.errors[name] == pytest.approx(relative_error(read[name], tensor), rel=1e-4)
        else:
            assert torch.equal(read[name], tensor)
    assert not (tmp_path / "out.partial").exists()
    assert (done.num_plain, done.num_copied) == (len(plain) - len(done.errors), 0)
    assert done.num_bytes == (done.folder / "model.safetensors").stat().st_size < done.num_bytes_before


def test_strips_are_put_together(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantized(model, tmp_path / "whole")
    monkeypatch.setattr(job, "_STRIP_NUMBERS", 1)
    monkeypatch.setattr(job, "_COPIED_BYTES", 1000)

    strips = quantized(model, tmp_path / "strips")

    assert contents(strips.folder) == contents(whole.folder)
    assert strips.errors == pytest.approx(whole.errors, rel=1e-6)


def test_the_fused_engine_serves_it(model: Path, tmp_path: Path) -> None:
    out = quantized(model, tmp_path / "out").folder
    options = load_options(out, pooling="mean", max_num_tokens=256)
    sequences = arbitrary((5, 17, 1, 30))

    engine = registry.load("fused", name="m", reason="", options=options)
    engine.submit(batch(sequences))
    _, results = engine.collect()
    engine.close()

    assert not isinstance(results, EngineError)
    rows = results[OutputKind.POOLED].values
    expected = Reference(model).pooled(sequences, "mean")
    cosines = (rows * expected).sum(1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(expected, axis=1)
    assert 0.99 < cosines.min() < 0.999999


def test_shards_keep_their_names_and_everything_else_is_copied(sharded: Path, tmp_path: Path) -> None:
    done = quantized(sharded, tmp_path / "out")

    index = json.loads((done.folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files == sorted(
        set(json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"].values())
    )
    others = {"config.json", "model.safetensors.index.json", "1_Pooling/config.json", "2_Dense/model.safetensors"}
    assert contents(done.folder).keys() == {*files, *others}
    assert (done.folder / "2_Dense/model.safetensors").read_bytes() == (
        sharded / "2_Dense/model.safetensors"
    ).read_bytes()
    size = 0
    for file in files:
        with safe_open(done.folder / file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            assert {name for name in opened.keys()} == {name for name, at in index["weight_map"].items() if at == file}  # noqa: SIM118
            size += sum(opened.get_tensor(name).nbytes for name in opened.keys())  # noqa: SIM118
    assert index["metadata"]["total_size"] == size
    plain = {name: tensor for file in files for name, tensor in load_file(sharded / file).items()}
    read = dequantized(done.folder)
    assert read.keys() == plain.keys()
    assert all(relative_error(read[name], plain[name]) < 0.03 for name in plain)


def test_every_tensor_lies_at_a_multiple_of_its_size(model: Path, tmp_path: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    tensors |= {"a.mask": torch.ones(3, dtype=torch.bool), "b.ids": torch.arange(5), "c.scale": torch.ones(())}
    folder = shutil.copytree(model, tmp_path / "odd")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    out = quantized(folder, tmp_path / "out").folder

    found = byte_ranges(out / "model.safetensors")
    assert all(place.begin % place.dtype.itemsize == 0 for place in found.values())
    read = load_file(out / "model.safetensors")
    assert all(torch.equal(read[name], tensors[name]) for name in ("a.mask", "b.ids", "c.scale"))


@pytest.mark.full
@pytest.mark.holds("A quantization can be interrupted anywhere")
def test_cut_off_anywhere_and_run_again_it_is_the_same(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantized(sharded, tmp_path / "whole")
    out = tmp_path / "out"
    for num_calls in range(1000):
        with monkeypatch.context() as patched:
            fuse = Fuse(patched, num_calls)
            with contextlib.suppress(Killed):
                quantized(sharded, out)
        if fuse.rest >= 0:
            break
        if out.exists():  # it was killed after that
            assert contents(out) == contents(whole.folder)
            assert not (tmp_path / "out.partial").exists()
            shutil.rmtree(out)
        again = quantized(sharded, out)
        assert contents(out) == contents(whole.folder)
        assert again.errors == whole.errors
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "sharded", "whole"]
        shutil.rmtree(out)
    else:
        pytest.fail("it never came to its end")
    assert num_calls > 50


def test_after_an_error_nothing_is_left(model: Path, tmp_path: Path) -> None:
    def report(num_done: int, total: int) -> None:
        raise ModelError("no more")

    with pytest.raises(ModelError, match="no more"):
        quantize(model, tmp_path / "out", report=report)
    assert contents(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_killed_at_the_very_end_it_leaves_nothing_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def killed_after(path: Path, target: Path) -> None:
        rename(path, target)
        monkeypatch.setattr(shutil, "rmtree", killed)
        raise Killed

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(Path, "rename", killed_after)
    with pytest.raises(Killed):
        quantized(model, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("name", "content"), [("mine", b"of mine"), ("config.json", b"of mine"), ("config.json", b"\xff")]
)
def test_what_is_in_the_way_stays(name: str, content: bytes, model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / name).write_bytes(content)
    with pytest.raises(ModelError, match="is in the way"):
        quantized(model, tmp_path / "out")
    assert contents(tmp_path) == {f"out.partial/{name}": content}
    with pytest.raises(ModelError, match="is not overwritten"):
        quantized(model, tmp_path / "out.partial")


def test_killed_within_a_character_of_the_configuration_it_begins_again(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "é"}))
    whole = contents(quantized(folder, tmp_path / "whole").folder)
    cut = whole["config.json"][: whole["config.json"].index("é".encode()) + 1]
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "config.json").write_bytes(cut)

    assert contents(quantized(folder, tmp_path / "out").folder) == whole


def test_two_at_once_are_refused(model: Path, tmp_path: Path) -> None:
    def report(num_done: int, total: int) -> None:
        with pytest.raises(ModelError, match="another process is at work"):
            quantized(model, tmp_path / "out")

    quantize(model, tmp_path / "out", report=report)
    assert contents(tmp_path / "out") == contents(quantized(model, tmp_path / "alone").folder)


def test_an_empty_folder_becomes_it(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert stored(quantized(model, tmp_path / "out").folder)


def test_weights_that_are_not_finite_are_named(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.1.mlp.up_proj.weight"][3, 3] = torch.inf
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"'layers\.1\.mlp\.up_proj\.weight' has numbers that are not finite"):
        quantized(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_line(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(ModelError, match="can't be written: No space left on device"):
            quantized(model, tmp_path / "out")
    assert quantized(model, tmp_path / "out").folder.is_dir()
