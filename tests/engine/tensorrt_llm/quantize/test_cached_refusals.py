"""Where there can be no copy in the cache: one line, and nothing begun."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from engine.tensorrt_llm.quantize.cached import block_fp8
from tests.engine import engines
from tests.engine.tensorrt_llm.quantize.models import copies, wide

pytestmark = pytest.mark.holds("TensorRT-LLM")


def refusal(folder: Path, cache: str | None) -> str:
    return engines.refusal(lambda: block_fp8(folder, cache_dir=cache))


def test_a_folder_that_others_may_write_into_is_refused(embedder: Path, tmp_path: Path) -> None:
    (tmp_path / "block-fp8").mkdir()
    (tmp_path / "block-fp8").chmod(0o777)
    said = refusal(embedder, str(tmp_path))
    assert "may write into it" in said
    assert "--compiled-cache" in said


def test_without_a_cache_the_command_is_named(embedder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for cache in (None, str(tmp_path / "file")):
        said = refusal(embedder, cache)
        assert "--compiled-cache" in said
        assert "embedline quantize MODEL OUT" in said


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


def test_layers_that_do_not_divide_into_blocks_are_named(tmp_path: Path, cache: str) -> None:
    narrow = wide(tmp_path / "narrow", num_hidden_layers=1, num_key_value_heads=2)
    assert "'layers.0.self_attn.k_proj.weight'" in refusal(narrow, cache)
    assert not Path(cache).exists()
