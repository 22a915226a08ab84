"""What a self-test found out is kept, and what it is good for."""

from pathlib import Path
from typing import Any

import pytest

from engine.transformers import engine, reference, selftest
from engine.transformers.engine import TransformersEngine
from engine.transformers.forward import PackedForward
from tests.engine.engines import load_options
from tests.engine.tiny_models import save
from tests.engine.transformers.test_engine_loading import Leaking


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of all sequences of each self-test."""
    counts: list[int] = []
    run_alone = reference.run_alone

    def counting(*arguments: Any) -> Any:
        found = run_alone(*arguments)
        counts.append(found.batch.num_tokens + sum(each.num_tokens for each in found.beside))
        return found

    monkeypatch.setattr(selftest, "run_alone", counting)
    return counts


def load(folder: Path, cache: Path | None, **others: Any) -> TransformersEngine:
    cache_dir = None if cache is None else str(cache)
    loaded = engine.load(name="m", reason="", options=load_options(folder, cache_dir=cache_dir, **others))
    loaded.close()
    return loaded


def said(loaded: TransformersEngine) -> list[str]:
    """Its notes, without those on linear layers: every start measures these anew."""
    return [note for note in loaded.info.notes if not note.startswith("linear layers: ")]


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_a_later_start_tries_less_and_says_the_same(family: str, tried: list[int], tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    notes = [said(load(folder, tmp_path / "cache")) for _ in range(3)]
    assert notes[0] == notes[1] == notes[2] != []
    assert tried[0] > 1.5 * tried[1]
    assert tried[1] == tried[2]


def test_nothing_is_kept_without_a_cache(tried: list[int], tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    load(folder, None)
    load(folder, None)
    assert tried[0] == tried[1]


def test_another_model_is_tried_anew(tried: list[int], tmp_path: Path) -> None:
    load(save("bert", tmp_path / "one"), tmp_path / "cache")
    load(save("ernie", tmp_path / "two"), tmp_path / "cache")
    assert min(tried) > 150


def test_a_finding_of_another_format_is_found_out_anew(
    tried: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save("bert", tmp_path / "model")
    load(folder, tmp_path / "cache")
    monkeypatch.setattr(selftest, "_FORMAT", selftest._FORMAT + 1)
    load(folder, tmp_path / "cache")
    assert tried[0] == tried[1]


def test_another_engines_longer_test_is_caught_up_with(tried: list[int], tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    load(folder, tmp_path / "cache", max_seqlen=50)
    for _ in range(2):
        load(folder, tmp_path / "cache", max_seqlen=50, least_tried=1024)  # no sequence can be so long
    assert tried[0] < tried[1]
    load(folder, tmp_path / "cache", least_tried=64)
    assert tried[3] >= tried[0]


def test_what_does_not_hold_any_more_is_found_out_anew(
    tried: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save("bert", tmp_path / "model")
    assert load(folder, tmp_path / "cache").info.notes[0].startswith("packed")
    monkeypatch.setattr(selftest, "PackedForward", Leaking)
    assert load(folder, tmp_path / "cache").info.notes[0].startswith("padded")
    monkeypatch.setattr(selftest, "PackedForward", PackedForward)
    assert len(tried) == 4  # what is packed no more is tried with longer ones when it is padded


def test_a_damaged_finding_is_found_out_anew(tried: list[int], tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    load(folder, tmp_path / "cache")
    (manifest,) = (tmp_path / "cache").glob("self-tests/*/manifest.json")
    manifest.write_text(manifest.read_text().replace('"packed"', '"one by one"'))
    assert load(folder, tmp_path / "cache").info.notes[0].startswith("packed")
    assert tried[1] == tried[0]
