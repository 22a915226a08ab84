"""Compiled models on disk: found again, rebuilt when damaged or out of date, bounded, and never in the way."""

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cpu import loading
from engine.cpu.offer import compile_options_of
from engine.cpu.selftest import Facts
from engine.machine import host
from engine.model.model_folder import read_with
from engine.selftest.fidelity import Fidelity
from engine.store import fingerprint
from engine.store.cache import Cache
from tests.engine.cpu.engines import load, options, rows_of
from tests.engine.cpu.fresh_start import start
from tests.engine.engines import difference
from tests.engine.tiny_models import arbitrary, save
from tests.tiers import full
from wire.frames import ProtocolError


def entries(cache_dir: Path) -> list[Path]:
    return sorted(path for path in (cache_dir / "compiled").iterdir() if path.is_dir())


@pytest.mark.holds("A warm start imports neither torch nor transformers", "Engines on a CPU", "Network access")
@pytest.mark.parametrize(
    ("architecture", "in_child", "imported"),
    [
        ("bert", False, set[str]()),
        *full(("distilbert", True, set[str]()), ("distilbert", False, {"torch", "transformers"})),
    ],
)
def test_a_warm_start_imports_neither_torch_nor_transformers(
    architecture: str, in_child: bool, imported: set[str], tmp_path: Path
) -> None:
    """Nor does a cold one of a BERT, or one whose model a child process compiles."""
    given = {"cache_dir": str(tmp_path / "cache")}
    folder = save(architecture, tmp_path / "model")
    cold_modules, cold_note = start(folder, **given, compiles_in_child=in_child)
    warm_modules, warm_note = start(folder, **given)
    assert {"torch", "transformers"} & set(cold_modules) == imported
    assert not {"openvino_telemetry", "openvino.tools.ovc.convert"} & set(cold_modules)
    assert warm_modules == []
    assert warm_note == cold_note
    assert len(entries(tmp_path / "cache")) == 1


def test_what_the_self_test_read_of_the_weights_is_given_back(tmp_path: Path) -> None:
    loaded = load(save("bert", tmp_path / "model"), cache_dir=str(tmp_path / "cache"))
    lines = Path("/proc/self/smaps").read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.endswith("/model.bin") and str(tmp_path) in line]
    assert next(line.split()[1] for line in lines[at:] if line.startswith("Rss:")) == "0"
    loaded.close()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a model's folder, and a cache that has it compiled."""
    root = tmp_path_factory.mktemp("compiled")
    load(save("bert", root / "model"), cache_dir=str(root / "cache")).close()
    return root


@pytest.fixture
def warm(compiled: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of both."""
    shutil.copytree(compiled, tmp_path / "warm")
    return tmp_path / "warm" / "model", tmp_path / "warm" / "cache"


def test_a_warm_engine_gives_the_same_rows(warm: tuple[Path, Path]) -> None:
    folder, cache_dir = warm
    found = rows_of(folder, arbitrary([5, 9, 9, 1]), cache_dir=str(cache_dir))
    assert len(entries(cache_dir)) == 1
    assert difference(found, rows_of(folder, arbitrary([5, 9, 9, 1]))) == 0


@pytest.mark.parametrize("what", ["weights", "config", "pooling", "understood", "format", "cpu"])
def test_another_model_is_compiled_anew(what: str, warm: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache_dir = warm
    if what == "weights":  # the same size and time, one byte in the middle differs
        file = folder / "model.safetensors"
        status = file.stat()
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif what == "config":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    elif what == "understood":  # the same file, in other words of the architecture
        found = read_with(options(folder))
        other = dataclasses.replace(found, config={**found.config, "layer_norm_eps": 1e-3}, is_translated=True)
        monkeypatch.setattr(loading, "read_with", lambda _: other)
    elif what == "format":
        monkeypatch.setattr(loading, "_FORMAT", loading._FORMAT + 1)
    elif what == "cpu":
        monkeypatch.setattr(host, "cpu", lambda: "another")
    load(folder, cache_dir=str(cache_dir), pooling="cls" if what == "pooling" else None).close()
    assert len(entries(cache_dir)) == 2


@pytest.mark.parametrize(("architecture", "counts"), [("bert", False), ("distilbert", True)])
def test_the_version_of_torch_counts_where_it_converts(
    architecture: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = read_with(options(save(architecture, tmp_path / "model")))
    compile_options = compile_options_of(folder, options(folder.path))
    key = loading._cache_key(folder, compile_options)
    installed = {**fingerprint.versions(("openvino", "transformers")), "torch": ""}
    monkeypatch.setattr(fingerprint, "versions", lambda names: {name: installed[name] for name in names})
    assert (loading._cache_key(folder, compile_options) != key) == counts


@pytest.mark.holds("A warm start imports neither torch nor transformers")
@pytest.mark.parametrize(
    "damage", ["flipped", "gone", "manifest", *full("cut", "no manifest", "deep", "facts", "dimensions")]
)
def test_a_damaged_entry_is_built_anew(damage: str, warm: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    folder, cache_dir = warm
    (entry,) = entries(cache_dir)
    graph, manifest = entry / "model.bin", entry / "manifest.json"
    content = graph.read_bytes()
    if damage == "cut":
        graph.write_bytes(content[:-100])
    elif damage == "flipped":
        graph.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    elif damage == "gone":
        graph.unlink()
    elif damage in ("manifest", "deep"):
        manifest.write_text("{" if damage == "manifest" else "[" * 100_000)
    elif damage == "no manifest":
        manifest.unlink()
    else:
        written = json.loads(manifest.read_text())
        facts = {"unknown": 1} if damage == "facts" else {**written["facts"], "dimensions": 31}
        manifest.write_text(json.dumps(written | {"facts": facts}))
    with caplog.at_level(logging.WARNING):
        load(folder, cache_dir=str(cache_dir)).close()
    assert "is not used" in caplog.text
    assert entries(cache_dir) == [entry]
    assert graph.read_bytes() == content
    assert Cache(cache_dir / "compiled").find(entry.name) is not None


def test_a_cache_that_cannot_be_written_is_only_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = save("bert", tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        assert rows_of(folder, [[5, 6]], cache_dir=str(tmp_path / "file")).shape == (1, 32)
    assert "models are not cached" in caplog.text


def test_without_a_folder_nothing_is_kept() -> None:
    cache = Cache(None)
    with cache.new_folder() as folder:
        cache.put("key", folder, {})
    assert not folder.exists()
    assert cache.find("key") is None


def put(cache: Cache, key: str, content: str = "x") -> None:
    with cache.new_folder() as folder:
        (folder / "model").write_text(content)
        cache.put(key, folder, {"from": content})


def test_the_first_of_two_that_start_side_by_side_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with cache.new_folder() as folder:
        (folder / "model").write_text("second")
        put(cache, "key", "first")
        cache.put("key", folder, {"from": "second"})
    found = cache.find("key")
    assert found is not None
    assert found.facts == {"from": "first"}
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_what_is_being_written_is_not_found(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with cache.new_folder() as folder:
        (folder / "model").write_text("half")
        assert list(tmp_path.iterdir()) == [folder]
        assert cache.find("key") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"difference": "x"},
        {"difference": None},
        {"difference": float("nan")},
        {"dimensions": 0},
        {"dimensions": True},
        {"pad_id": -2},
        {"pad_id": "0"},
        {"dtype": "float64"},
        {"computed_by": 1},
        {"fidelity": {"min_cosine": 0.99}},
        {"fidelity": {**dataclasses.asdict(Fidelity(0.99, 0.99, 0.99, 0.99, 33)), "overlap": "x"}},
        {"unknown": 1},
    ],
)
def test_facts_of_another_kind(wrong: dict[str, object]) -> None:
    facts = Facts(
        dimensions=3,
        pad_id=-1,
        dtype="float32",
        difference=1e-6,
        computed_by="numpy's",
        fidelity=None,
        num_products=0,
    )
    right = json.loads(json.dumps(dataclasses.asdict(facts)))
    assert Facts.decode(right) == facts
    with pytest.raises((ValueError, ProtocolError)):
        Facts.decode(right | wrong)


@pytest.mark.parametrize("which", [".", "key"])
@pytest.mark.parametrize("how", ["group", "everybody", "owner"])
def test_what_others_could_have_written_is_not_used(
    which: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "compiled"
    put(Cache(root), "key")
    if how == "owner":
        owners = {(root / which).resolve()}
        monkeypatch.setattr(Path, "stat", _owned_by_another(Path.stat, owners))
    else:
        (root / which).chmod(0o770 if how == "group" else 0o707)
    cache = Cache(root)
    with caplog.at_level(logging.WARNING):
        assert cache.find("key") is None
        put(cache, "other")
    assert len(caplog.records) == 1
    assert (root / "other").is_dir() == (which == "key")


def _owned_by_another(stat: Callable[..., os.stat_result], owned: set[Path]) -> Callable[..., os.stat_result]:
    def changed(path: Path, **others: bool) -> os.stat_result:
        status = stat(path, **others)
        return os.stat_result((*status[:4], 4711, *status[5:])) if Path(os.path.abspath(path)) in owned else status

    return changed


@pytest.mark.parametrize("kind", ["file in the way", "not to be read", "not to be entered"])
def test_a_disk_that_fails_is_only_warned_of(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "compiled"
    put(Cache(root), "key")
    blocked = root if kind == "not to be entered" else root / "key"
    if kind == "file in the way":
        shutil.rmtree(root)
        root.touch()

    def refuse(path: Path, call: Callable[..., Any], *rest: Any, **others: Any) -> Any:
        if kind != "file in the way" and path.is_relative_to(blocked) and (path != blocked or call is iterdir):
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *rest, **others)

    iterdir = Path.iterdir
    for name in ("stat", "read_bytes", "iterdir", "mkdir", "rename"):
        call = getattr(Path, name)
        monkeypatch.setattr(Path, name, lambda path, *rest, call=call, **others: refuse(path, call, *rest, **others))
    cache = Cache(root)
    with caplog.at_level(logging.WARNING):
        assert cache.find("key") is None
        put(cache, "key")
    assert caplog.records
