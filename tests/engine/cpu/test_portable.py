"""Compiled models that travel: taken without torch, tested again, and never where they do not belong."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.cpu import converted, loading, openvino, portable, selftest
from engine.cpu.converted import Converted
from engine.cpu.offer import compile_options_of
from engine.cpu.openvino import Executor
from engine.machine import host
from engine.model.model_folder import read_with
from engine.selftest.fidelity import Fidelity
from engine.store import fingerprint, manifest
from tests.engine.cpu.engines import load, options, rows_of
from tests.engine.cpu.fresh_start import start
from tests.engine.engines import difference
from tests.engine.tiny_models import Reference, arbitrary, save
from tests.tiers import full

SEQLENS = (5, 17, 1, 30, 9)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model's folder and what was exported of it."""
    folder, entry = tmp_path_factory.mktemp("model") / "bert", tmp_path_factory.mktemp("entry")
    save("bert", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "multiplies_bfloat16", lambda: False)
        loading.export(options(folder, dtype="auto"), entry)
    return folder, entry


@pytest.fixture
def copied(made: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies, for tests that change them."""
    return tuple(Path(shutil.copytree(each, tmp_path / str(number))) for number, each in enumerate(made))  # type: ignore[return-value]


@pytest.mark.holds("A warm start imports neither torch nor transformers", "Engines on a CPU")
def test_a_first_start_from_it_imports_neither_torch_nor_transformers(made: tuple[Path, Path], tmp_path: Path) -> None:
    folder, entry = made
    modules, note = start(folder, compiled_model=str(entry), cache_dir=str(tmp_path / "cache"))
    assert modules == []
    assert note.startswith("the self-test's rows equal those that numpy computes")


def test_its_rows_are_transformers_rows(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a read-only folder, by another path of the model, whose files are newer: sums count, and no times."""
    folder, entry = made
    moved = Path(shutil.copytree(folder, tmp_path / "moved", copy_function=shutil.copyfile))
    monkeypatch.setattr(loading, "convert", None)
    entry.chmod(0o500)
    rows = rows_of(moved, arbitrary(SEQLENS), compiled_model=str(entry))
    assert difference(rows, Reference(folder).pooled(arbitrary(SEQLENS), "mean")) <= 1e-5


@pytest.mark.parametrize(("is_near", "dtype"), [(True, "bfloat16"), *full((False, "float32"))])
def test_auto_is_measured_where_it_serves(
    is_near: bool, dtype: str, made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made where nothing multiplies bfloat16, and float32 is compiled only if it serves."""
    folder, entry = made
    opened: list[str] = []
    open_model = openvino.open_model

    def opened_as(entry: Path, *, dtype: str, **others: Any) -> Executor:
        opened.append(dtype)
        return open_model(entry, dtype="float32", **others)

    monkeypatch.setattr(loading, "convert", None)
    monkeypatch.setattr(host, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(Fidelity, "is_hardly_lower", is_near)
    monkeypatch.setattr(openvino, "open_model", opened_as)
    loaded = load(folder, dtype="auto", compiled_model=str(entry))
    loaded.close()
    assert loaded.info.dtype == dtype
    assert opened == ["bfloat16", *(["float32"] if not is_near else [])]


def test_what_cannot_be_used_is_told_and_made_anew(
    copied: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, entry = copied
    (entry / "model.bin").write_bytes((entry / "model.bin").read_bytes()[:-100])
    with caplog.at_level(logging.WARNING):
        rows = rows_of(folder, arbitrary(SEQLENS), compiled_model=str(entry), cache_dir=str(tmp_path / "cache"))
    assert f"{entry} is not used: " in caplog.text
    assert "model.bin; it is made anew" in caplog.text
    assert difference(rows, Reference(folder).pooled(arbitrary(SEQLENS), "mean")) <= 1e-5
    assert list((tmp_path / "cache" / "compiled").glob("*/manifest.json"))


@pytest.mark.full
def test_wrong_rows_on_this_cpu_are_refused(
    made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the rows that came with it: this is what the self-test would find if the CPU's kernels were wrong."""
    folder, entry = made
    answers = iter([False])  # and then right ones, of the model that is made anew
    monkeypatch.setattr(selftest, "is_near", lambda *found, **of: next(answers, True))
    with caplog.at_level(logging.WARNING):
        load(folder, compiled_model=str(entry)).close()
    assert "the compiled model's rows are not the original's" in caplog.text


def change_manifest(entry: Path, **made_for: object) -> None:
    """As another version would have written it; without what is None."""
    facts, _ = manifest.read_facts(entry)
    (entry / manifest.FILE).unlink()
    changed = {name: value for name, value in {**facts["made_for"], **made_for}.items() if value is not None}
    manifest.write(entry, {**facts, "made_for": changed}, samples=False)


def cut(folder: Path, entry: Path) -> None:
    (entry / "rows.npz").write_bytes((entry / "rows.npz").read_bytes()[:-1])


def change_a_fact(folder: Path, entry: Path) -> None:
    written = json.loads((entry / manifest.FILE).read_text())
    (entry / manifest.FILE).write_text(json.dumps(written | {"facts": {}}))


def of_another_openvino(folder: Path, entry: Path) -> None:
    change_manifest(entry, versions={"openvino": "2025.1"})


def of_another_format(folder: Path, entry: Path) -> None:
    change_manifest(entry, format=portable._FORMAT + 1)


def of_no_format(folder: Path, entry: Path) -> None:
    """As versions wrote it that held it against a digest of their own source."""
    versions = fingerprint.versions(("embedline", "openvino")) | {"Embedline's code": "0" * 64}
    change_manifest(entry, format=None, versions=versions)


def of_another_pooling(folder: Path, entry: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def of_other_weights(folder: Path, entry: Path) -> None:
    """The same size and time, one byte in the middle differs."""
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def of_another_config(folder: Path, entry: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))


@pytest.mark.holds("Engines on a CPU")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (cut, "a file has changed since it was written: rows.npz"),
        (of_another_openvino, r"openvino 2025\.1 made it, and this is 202"),
        (of_no_format, r"^it is of format 0, and this version of Embedline reads format \d+$"),
        (of_other_weights, r"of a model with another model\.safetensors"),
        *full(
            (change_a_fact, "its manifest has changed"),
            (of_another_format, r"it is of format \d+, and this version of Embedline reads format \d+"),
            (of_another_pooling, "made for pooling 'mean', and this is 'cls'"),
            (of_another_config, "another config.json"),
        ),
    ],
)
def test_what_is_damaged_or_of_something_else(
    change: Callable[[Path, Path], None], told: str, copied: tuple[Path, Path]
) -> None:
    folder, entry = copied
    given = options(folder)
    before = read_with(given)
    assert portable.read(entry, before, compile_options_of(before, given)).pad_id == 0
    change(folder, entry)
    after = read_with(given)
    with pytest.raises((ValueError, OSError), match=told):
        portable.read(entry, after, compile_options_of(after, given))


def test_another_version_of_embedline_reads_what_has_the_same_format(
    made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, distributions = read_with(options(made[0])), metadata.distributions

    def newer(name: str) -> Iterable[Any]:
        return [SimpleNamespace(version="99.0")] if name == "embedline" else distributions(name=name)

    monkeypatch.setattr(metadata, "distributions", newer)
    assert portable.read(made[1], folder, compile_options_of(folder, options(made[0]))).pad_id == 0


def test_references_are_as_they_were(tmp_path: Path, copied: tuple[Path, Path]) -> None:
    """Of both kinds, with sequences of several lengths, and with one row each."""
    folder = read_with(options(copied[0]))
    compile_options = compile_options_of(folder, options(copied[0]))
    read = portable.read(copied[1], folder, compile_options)
    assert read.of_texts
    per_token = read.references[0]
    assert [len(rows) for rows in per_token.rows] == [len(ids) for ids in per_token.sequences]
    one_row = converted.Reference(per_token.sequences, [rows[:1] for rows in per_token.rows], hides_tokens=True)
    target = tmp_path / "new"
    target.mkdir()
    again = Converted(
        references=(per_token, one_row),
        of_texts=(),
        computed_by="b",
        notes=("a",),
        num_products=2,
        dimensions=32,
        pad_id=-1,
    )
    portable.write(target, again, folder, compile_options)
    found = portable.read(target, folder, compile_options)
    assert dataclasses.replace(found, references=()) == dataclasses.replace(again, references=())
    for one, other in zip(found.references, again.references, strict=True):
        assert one.hides_tokens == other.hides_tokens
        assert all(map(np.array_equal, one.sequences, other.sequences))
        assert all(map(np.array_equal, one.rows, other.rows))
