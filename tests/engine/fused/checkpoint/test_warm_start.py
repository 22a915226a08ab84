"""Whole fused engines started twice: what the second start takes, what it does without, what makes it cold again."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.fused import weights
from engine.fused.quantization import gate, measures
from engine.model import model_folder
from engine.selftest import sample_ids
from tests.engine.engines import rows_of
from tests.engine.fused.loaded import fp8_options, load_fp8
from tests.engine.tiny_models import save_tame
from tests.tiers import full

START = """
import builtins, json, sys
plain_import = builtins.__import__

def refusing_import(name, *rest):
    assert name.partition(".")[0] not in ("transformers", "triton"), name
    return plain_import(name, *rest)

if sys.argv[2] == "warm":
    builtins.__import__ = refusing_import
from engine.fused import start
from engine.fused.quantization import measures
from engine.messages import LoadOptions
measures.MIN_MEDIAN = measures.MIN_P1 = -1  # weights like these never pass
loaded = start.load(name="m", reason="", options=LoadOptions(**json.loads(sys.argv[1])))
print(json.dumps(["transformers" in sys.modules, *loaded.info.notes]))
"""


def entries(cache_dir: Path) -> list[Path]:
    return sorted((cache_dir / "fused").glob("[!.]*"))


def start(folder: Path, cache_dir: Path, how: str) -> tuple[bool, list[str]]:
    """In a new process: whether transformers was imported, and what is noted of the model."""
    answer = subprocess.run(
        [sys.executable, "-c", START, json.dumps(dataclasses.asdict(fp8_options(folder, cache_dir))), how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    is_imported, *notes = json.loads(answer.stdout)
    return is_imported, notes


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arbitrary weights never pass the gate."""
    monkeypatch.setattr(measures, "MIN_MEDIAN", -1)
    monkeypatch.setattr(measures, "MIN_P1", -1)


@pytest.mark.full
@pytest.mark.holds("A warm fused start imports no transformers")
def test_a_warm_start_imports_no_transformers(tmp_path: Path) -> None:
    folder, cache_dir = save_tame("bert", tmp_path / "model"), tmp_path / "cache"
    imported_cold, cold = start(folder, cache_dir, "cold")
    imported_warm, warm = start(folder, cache_dir, "warm")
    assert (imported_cold, imported_warm) == (True, False)
    (entry,) = entries(cache_dir)
    taken = f"quantized weights taken from {entry}"
    assert "fp8_row in all 9 linear layers: cosine median" in cold[1]
    assert warm == [*cold[:2], taken, *cold[2:]]


@pytest.mark.holds("A warm fused start imports no transformers")
@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("family", ["modernbert", *full("bert", "albert", "qwen3 with a window", "gemma2", "mpnet")])
def test_a_warm_engine_gives_the_same_rows(family: str, tmp_path: Path) -> None:
    folder, cache_dir = save_tame(family, tmp_path / "model"), tmp_path / "cache"
    cold, warm = load_fp8(folder, cache_dir), load_fp8(folder, cache_dir)
    assert any("taken from" in note for note in warm.info.notes)
    assert (warm.info.dtype, warm.info.dimensions) == (cold.info.dtype, cold.info.dimensions) == ("fp8", 32)
    sequences = sample_ids.arbitrary(model_folder.read(folder), (5, 17, 1, 30))
    np.testing.assert_array_equal(rows_of(warm, sequences), rows_of(cold, sequences))


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("others", [{"quantization": "auto"}, *full({"quantization": "none"}, {"is_gated": False})])
def test_what_is_not_quantized_or_not_gated_is_not_kept(others: dict[str, Any], tmp_path: Path) -> None:
    folder, cache_dir = save_tame("bert", tmp_path / "model"), tmp_path / "cache"
    load_fp8(folder, cache_dir, **others)
    assert not entries(cache_dir)


@pytest.mark.holds("A warm fused start imports no transformers")
@pytest.mark.usefixtures("lenient")
def test_a_model_that_is_not_gated_takes_none_that_was(tmp_path: Path) -> None:
    folder, cache_dir = save_tame("bert", tmp_path / "model"), tmp_path / "cache"
    load_fp8(folder, cache_dir)
    assert not any("taken from" in note for note in load_fp8(folder, cache_dir, is_gated=False).info.notes)


def test_a_model_that_stands_no_quantizing_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "MIN_P1", 1.1)
    folder, cache_dir = save_tame("bert", tmp_path / "model"), tmp_path / "cache"
    cold = load_fp8(folder, cache_dir).info
    assert cold.dtype == "float32"
    monkeypatch.setattr(gate, "check", None)
    warm = load_fp8(folder, cache_dir).info
    assert warm.dtype == "float32"
    (note,) = [note for note in warm.notes if "was rejected" in note]
    assert note.endswith(", at an earlier start")
    assert note.removesuffix(", at an earlier start") in cold.notes


@pytest.mark.usefixtures("lenient")
def test_other_weights_make_a_start_cold_again(tmp_path: Path) -> None:
    folder, cache_dir = save_tame("bert", tmp_path / "model"), tmp_path / "cache"
    load_fp8(folder, cache_dir)
    os.utime(folder / "model.safetensors", (1, 1))
    assert not any("taken from" in note for note in load_fp8(folder, cache_dir).info.notes)


@pytest.mark.usefixtures("lenient")
def test_the_original_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache_dir = save_tame("bert", tmp_path / "model"), tmp_path / "cache"
    load_fp8(folder, cache_dir)

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(weights, "open_model", refuse)
    load_fp8(folder, cache_dir)
