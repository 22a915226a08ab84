"""The copy in the cache is what the command makes. One process makes it; after a kill the next one starts again. Where
there can be none, that is one line, and nothing is begun.
"""

import dataclasses
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from engine.model import model_folder
from engine.model.weights import read_arrays
from engine.tensorrt_llm.quantize import cached
from engine.tensorrt_llm.quantize.cached import block_fp8
from tests.engine import engines
from tests.engine.folder_files import change, write
from tests.engine.tensorrt_llm.quantize.models import contents, copies, wide


def test_it_is_what_the_command_makes_and_is_made_once(
    embedder: Path, whole: dict[str, bytes], cache: str, strips: list[int], log: pytest.LogCaptureFixture
) -> None:
    first = block_fp8(embedder, cache_dir=cache)

    assert len(strips) == 7
    assert contents(first) == whole
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "chat_template.jinja"} < whole.keys()
    begun, ended = log.messages
    assert begun == f"quantizing {embedder} to block FP8, 0.7 MiB, in {first}; later starts find it there"
    assert ended.startswith(f"quantized {embedder} in ")
    assert "the largest relative RMS error of a tensor is 2." in ended

    assert block_fp8(embedder, cache_dir=cache) == first
    assert len(strips) == 7
    assert log.messages[2:] == [f"found the FP8 copy in {first}"]
    assert copies(cache) == [first.name]


def test_engines_read_it_as_they_read_the_model(embedder: Path, cache: str) -> None:
    plain, fp8 = (model_folder.read(folder) for folder in (embedder, block_fp8(embedder, cache_dir=cache)))
    assert len(plain.steps) == 1
    assert dataclasses.replace(fp8, path=embedder, config=plain.config) == plain
    arrays = [read_arrays(folder.path, folder.steps)[0]["linear.weight"] for folder in (plain, fp8)]
    assert (arrays[0] == arrays[1]).all()


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize("change_of", ["weights", "config", "pooling", "format"])
def test_another_model_is_quantized_anew(
    change_of: str, folder: Path, cache: str, strips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = block_fp8(folder, cache_dir=cache)
    before = contents(first)
    match change_of:
        case "weights":  # under the old time, as some tools unpack files
            stats = (folder / "model.safetensors").stat()
            tensors = load_file(folder / "model.safetensors")
            tensors["layers.0.mlp.up_proj.weight"] *= 2
            save_file(tensors, folder / "model.safetensors", {"format": "pt"})
            os.utime(folder / "model.safetensors", ns=(stats.st_atime_ns, stats.st_mtime_ns))
        case "config":
            change(folder / "config.json", rms_norm_eps=1e-4)
        case "pooling":
            write(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
        case "format":
            monkeypatch.setattr(cached, "_FORMAT", cached._FORMAT + 1)

    second = block_fp8(folder, cache_dir=cache)

    assert second != first
    assert len(strips) == 14
    assert contents(first) == before
    assert (contents(second) == before) == (change_of == "format")


@pytest.mark.parametrize("damage", ["cut", "header", "config", "lacking", "other"])
def test_a_damaged_copy_is_made_anew(
    damage: str, embedder: Path, whole: dict[str, bytes], cache: str, log: pytest.LogCaptureFixture
) -> None:
    copy = block_fp8(embedder, cache_dir=cache)
    weights = copy / "model.safetensors"
    match damage:
        case "cut":
            os.truncate(weights, weights.stat().st_size - 1)
        case "header":
            with weights.open("r+b") as opened:
                opened.write(bytes(20))
        case "config":
            (copy / "config.json").write_bytes(b"\xff")
        case "lacking":
            (copy / "1_Pooling" / "config.json").unlink()
        case "other":
            (copy / "chat_template.jinja").write_text("")
    log.clear()

    assert contents(block_fp8(embedder, cache_dir=cache)) == whole
    assert log.messages[0].startswith(f"the FP8 copy in {copy} can't be used: ")


def test_lines_come_now_and_then(log: pytest.LogCaptureFixture) -> None:
    times: Any = iter([0.0, 5.0, 12.0, 12.0, 20.0, 22.0, 22.0])
    report = cached._lines(Path("m"), lambda: next(times))
    for num_done in (10, 20, 30, 40):
        report(num_done, 40)
    assert log.messages == ["quantizing m: 50 %", "quantizing m: 100 %"]


def test_an_error_that_is_unusual_is_warned_of(
    embedder: Path, cache: str, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cached, "_MAX_ERROR", 0.01)
    block_fp8(embedder, cache_dir=cache)
    assert [record.levelname for record in log.records] == ["INFO", "WARNING"]


def refusal(folder: Path, cache: str | None) -> str:
    return engines.refusal(lambda: block_fp8(folder, cache_dir=cache))


@pytest.mark.holds("TensorRT-LLM")
def test_a_folder_that_others_may_write_into_is_refused(embedder: Path, tmp_path: Path) -> None:
    (tmp_path / "block-fp8").mkdir()
    (tmp_path / "block-fp8").chmod(0o777)
    said = refusal(embedder, str(tmp_path))
    assert "may write into it" in said
    assert "--compiled-cache" in said


@pytest.mark.holds("TensorRT-LLM")
def test_without_a_cache_the_command_is_named(embedder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for cache in (None, str(tmp_path / "file")):
        said = refusal(embedder, cache)
        assert "--compiled-cache" in said
        assert "embedline quantize MODEL OUT" in said


@pytest.mark.holds("TensorRT-LLM")
def test_too_little_room_is_said_before_it_begins(
    embedder: Path, cache: str, strips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage(free=1 << 30))
        said = refusal(embedder, cache)
    assert said.startswith(f"--quantization fp8 needs 1.0 GiB in {cache}/block-fp8, where 1.0 GiB are free")
    assert not strips
    assert copies(cache) == []


@pytest.mark.holds("TensorRT-LLM")
def test_layers_that_do_not_divide_into_blocks_are_named(tmp_path: Path, cache: str) -> None:
    narrow = wide(tmp_path / "narrow", num_hidden_layers=1, num_key_value_heads=2)
    assert "'layers.0.self_attn.k_proj.weight'" in refusal(narrow, cache)
    assert not Path(cache).exists()
