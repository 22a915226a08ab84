"""Folders of adapters at a start: where the base is found, what is said, and that a copy is whole or absent."""

import contextlib
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft import LoraConfig
from safetensors.numpy import load_file, save_file

from embedline.progress import Report
from engine.convert import merging
from engine.model import model_folder
from engine.model.coverage import Use
from engine.model.identity import identify
from engine.store.model_source import ResolvedModel
from engine.types import ModelError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_files import NotConvertedError, find_files
from tests.engine.convert.adapters import Adapted
from tests.engine.folder_files import change, write
from tests.engine.tensorrt_llm.quantize.models import contents, end_of_processes
from tests.parity.folders import save
from tests.structure.sources import ROOT

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient:FutureWarning"),
    pytest.mark.usefixtures("processes"),
]
COMMIT = "0" * 40
# Merges the folder in its first argument into the cache in its second. A third says what happens at the second tensor.
CHILD = """
import contextlib, logging, os, signal, sys
from engine.convert import merging
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_files import find_files
folder, cache, what = sys.argv[1:]
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
made, seen = merging._Change.made, []
def slow(change):
    seen.append(change)
    if len(seen) == 2 and what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if len(seen) == 2 and what == "waits":
        print("halfway", flush=True)
        sys.stdin.readline()
    return made(change)
merging._Change.made = slow
@contextlib.contextmanager
def unseen(title):
    yield lambda num_done, total: None
settings = Settings(models=(ModelSettings(model_id=folder),), compiled_cache=cache)
print(find_files(settings.models[0], settings, needs_weights=True, progress=unseen).path)
"""


@contextlib.contextmanager
def unseen(title: str) -> Iterator[Report]:
    yield lambda num_done, total: None


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[None]:
    yield
    end_of_processes(tmp_path / "cache")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save("BERT", Use.EMBED, tmp_path / "base")


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    """An adapter's, whose config names the base."""
    config = LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    Adapted(base, config, tmp_path / "legal")
    return tmp_path / "legal"


def names(folder: Path, base: str | None, **others: Any) -> None:
    change(folder / "adapter_config.json", base_model_name_or_path=base, **others)


def found(folder: Path | str, *others: ModelSettings, **options: Any) -> ResolvedModel:
    """By a server with these models as well."""
    cache = Path(folder).parent / "cache"
    model = ModelSettings(model_id=str(folder), **options.pop("model", {}))
    settings = Settings(models=(model, *others), compiled_cache=str(cache), **options.pop("settings", {}))
    return find_files(model, settings, **{"needs_weights": True, "progress": unseen, **options})


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        found(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_first_start_makes_the_copy_and_says_so(folder: Path, base: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "embedline.engine")
    with pytest.raises(NotConvertedError, match=rf"{folder} holds an adapter of {base}: a start merges them"):
        found(folder, progress=None)

    first = found(folder)

    assert first.path.parents[1] == folder.parent / "cache" / "merged"
    assert first.path.name == "legal"
    assert first.source == f"local folder, merged into {base} (local folder)"
    assert caplog.messages[0].startswith(f"merging {folder} into {base}: 4 of 39 tensors, in {first.path.parent}; ")
    for progress in (unseen, None):
        assert found(folder, progress=progress) == first
    assert sum(message.startswith("merging ") for message in caplog.messages) == 1
    with pytest.raises(ModelError, match=r"legal holds an adapter \(adapter_config\.json\), .* --convert never"):
        model_folder.read(found(folder, model={"convert": "never"}).path)


def test_adapters_and_bases_are_told_apart(folder: Path, base: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other" / "legal")
    change(other / "adapter_config.json", lora_alpha=5)
    seen = [found(each).path for each in (folder, other)]
    seen.append(base)
    weights = load_file(base / "model.safetensors")
    save_file(weights | {"pooler.dense.bias": weights["pooler.dense.bias"] + 1}, base / "model.safetensors")
    seen.append(found(folder).path)
    assert len({identify(model_folder.read(path), flags={}).weights for path in seen}) == 4


@pytest.mark.parametrize("way", ["beside the adapter", "from the working folder", "a served model", "its own name"])
def test_the_base_is_found(way: str, folder: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: tuple[ModelSettings, ...] = ()
    model: dict[str, Any] = {}
    match way:
        case "beside the adapter":
            names(folder, "../base")
        case "from the working folder":
            monkeypatch.chdir(tmp_path)
            names(folder, "base")
        case "a served model":
            names(folder, "my-base")
            others = (ModelSettings(model_id=str(base), served_model_name="my-base"),)
        case "its own name":
            names(folder, "my-base")
            model = {"served_model_name": "my-base"}
            others = (ModelSettings(model_id=str(base), served_model_name="my-base-plain"),)
            monkeypatch.chdir(tmp_path)
            base.rename(tmp_path / "my-base")
            base = tmp_path / "my-base"
    assert str(base) in found(folder, *others, model=model).source


def in_hub(folder: Path, name: str) -> Path:
    """The folder as a repository in the hub's cache."""
    repository = folder.parent / "hub" / f"models--us--{name}"
    (repository / "snapshots").mkdir(parents=True)
    folder.rename(repository / "snapshots" / COMMIT)
    files = [file.relative_to(repository / "snapshots" / COMMIT) for file in repository.rglob("*") if file.is_file()]
    write(repository / "trees" / f"{COMMIT}.json", {"format_version": 1, "files": list(map(str, files))})
    return repository / "snapshots" / COMMIT


def test_both_may_be_in_the_hubs_cache(folder: Path, base: Path, tmp_path: Path) -> None:
    names(folder, "us/base", revision=COMMIT)
    snapshot = in_hub(base, "base")
    in_hub(folder, "legal")
    settings = Settings(
        models=(ModelSettings(model_id="us/legal", revision=COMMIT),),
        huggingface_hub_cache=str(tmp_path / "hub"),
        compiled_cache=str(tmp_path / "cache"),
    )
    made = find_files(settings.models[0], settings, needs_weights=True, progress=unseen)
    assert made.source == f"hub cache, merged into {snapshot} (hub cache)"
    assert made.path.name == "models--us--legal"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (None, "is empty: write the folder or the name of the adapter's base there"),
        ("/nowhere/at all", "is '/nowhere/at all', which is not found: "),
        ("x" * 5000, ", which is not found: "),
        ("a\0b", "is no name"),
        (".", "names the adapter itself"),
        ("../other", "is '../other', which is an adapter, too"),
    ],
)
def test_a_base_that_is_not_there_is_refused_by_file_and_key(named: str | None, words: str, folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "other")
    names(folder, named)
    message = refusal(folder)
    assert message.startswith(f"'base_model_name_or_path' in {folder / 'adapter_config.json'} ")
    assert words in message


def test_where_no_copy_can_be_kept_peft_is_named(folder: Path) -> None:
    settings = Settings(models=(ModelSettings(model_id=str(folder)),), compiled_cache="off")
    with pytest.raises(ModelError, match=r"--compiled-cache is off\): merge it with PEFT's merge_and_unload"):
        find_files(settings.models[0], settings, needs_weights=True, progress=unseen)


def test_an_adapter_beside_weights_is_refused(folder: Path, base: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(base / name, folder / name)
    with pytest.raises(ModelError, match=r"holds an adapter \(adapter_config\.json\) and weights of its own"):
        model_folder.read(found(folder).path)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, OSError(28, "No space left on device"), ModelError("odd")])
def test_what_ends_it_leaves_nothing(ending: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def fails(change: merging._Change) -> Any:
        made.append(change)
        if len(made) == 2:
            raise ending
        return np.zeros(change.source.shape, np.float32)

    with monkeypatch.context() as patch:
        patch.setattr(merging._Change, "made", fails)
        with pytest.raises((KeyboardInterrupt, ModelError)):
            found(folder)
    assert copies(folder) == []
    assert "model.safetensors" in contents(found(folder).path)


def copies(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder.parent / "cache" / "merged").iterdir() if path.is_dir())


def child(folder: Path, what: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(folder.parent / "cache"), what],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_after_kill_9_the_next_start_makes_it(folder: Path, tmp_path: Path) -> None:
    expected = contents(found(shutil.copytree(folder, tmp_path / "apart" / "legal")).path)
    with child(folder, "killed") as killed:
        killed.communicate()
    assert killed.returncode == -9
    (left,) = copies(folder)
    assert left.endswith(".partial")
    assert contents(found(folder).path) == expected
    assert copies(folder) == [left.removesuffix(".partial")]


def test_two_starts_at_once_make_one_copy(folder: Path) -> None:
    with child(folder, "waits") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "halfway\n"
        with child(folder, "") as second:
            assert second.stderr is not None
            waits = next(line for line in second.stderr if "another process is at work" in line)
            assert f"the merged weights of {folder}" in waits
            assert copies(folder)[0].endswith(".partial")
            path = first.communicate("\n")[0]
            told = second.communicate()
    assert told[0] == path
    assert "found the merged weights" in told[1]
    assert json.loads(Path(path.strip(), "config.json").read_text())["model_type"] == "bert"
