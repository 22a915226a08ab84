"""Models of which the hub's cache has a part, as programs leave it that fetch files one by one: completed from the hub,
and refused where that can't be reached."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.store.hub_cache import PICKLED_PATTERNS
from engine.store.model_source import find_here
from engine.types import ModelError
from tests.engine.folder_files import NO_TENSORS, write
from tests.engine.model.sentence_folder import POOLING, TRANSFORMER
from tests.engine.store.local_hub import COMMIT, MODEL, LocalHub, serving_hub
from tests.engine.store.starts import NOBODY, Starter
from tests.server_e2e.running import PATIENCE
from tests.tiers import full

FETCH = """
import json, sys
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
model_id, revision, names, where = json.loads(sys.argv[1])
for name in names:
    try:
        hf_hub_download(model_id, name, revision=revision, **where)
    except EntryNotFoundError:
        pass
"""
TRANSFORMERS_ALONE = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
MODULES = [
    TRANSFORMER,
    POOLING,
    {"name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {"name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
]
SENTENCE = (
    *("modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
    *("config_sentence_transformers.json", "sentence_bert_config.json"),
)
OFFLINE = [{"HF_HUB_OFFLINE": "1"}, *full({"HF_ENDPOINT": NOBODY})]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    folder = tmp_path / "on the hub"
    for name in (*TRANSFORMERS_ALONE, *SENTENCE):
        if name.endswith(".json"):
            write(folder / name, MODULES if name == "modules.json" else {"name": name})
    for name in ("model.safetensors", "2_Dense/model.safetensors"):
        (folder / name).write_bytes(NO_TENSORS)
    with serving_hub(folder) as running:
        yield running


@pytest.fixture
def start(hub: LocalHub, tmp_path: Path) -> Starter:
    return Starter(hub, tmp_path / "cache")


def fetch(start: Starter, *names: str, revision: str = "main", local_dir: Path | None = None) -> Path:
    """The snapshot after the library was asked for these files, one by one, as from_pretrained does."""
    where = {"local_dir": str(local_dir)} if local_dir else {"cache_dir": str(start.cache)}
    given = json.dumps([MODEL, revision, names, where])
    subprocess.run([sys.executable, "-P", "-c", FETCH, given], env=start.environment(), check=True, timeout=PATIENCE)
    return snapshot_of(start)


def snapshot_of(start: Starter) -> Path:
    return start.cache / "models--org--model" / "snapshots" / COMMIT


@pytest.mark.parametrize("environment", OFFLINE)
def test_without_the_modules_nothing_is_guessed(start: Starter, environment: dict[str, str]) -> None:
    folder = fetch(start, *TRANSFORMERS_ALONE)
    for model_id in (MODEL, str(folder)):
        error = start(model_id, **environment).error
        assert error.startswith(f"{folder} was fetched in part: it may lack modules.json; fetch all of {MODEL} with")
        assert "--pooling" in error


def test_a_cache_in_part_is_completed(hub: LocalHub, start: Starter) -> None:
    folder = fetch(start, *TRANSFORMERS_ALONE)
    assert start().path == folder
    assert {name for name in hub.files() if (folder / name).is_file()} == set(hub.files())
    assert start(HF_HUB_OFFLINE="1").source == "hub cache"


@pytest.mark.parametrize("environment", OFFLINE)
def test_a_repository_without_modules_is_served_by_its_mark(
    hub: LocalHub, start: Starter, environment: dict[str, str]
) -> None:
    (hub.folder / "modules.json").unlink()
    folder = fetch(start, *TRANSFORMERS_ALONE, "modules.json")
    assert start(**environment).path == folder
    assert start(str(folder), **environment).path == folder


def test_a_pooling_that_is_given_stands_for_the_modules(hub: LocalHub, start: Starter) -> None:
    (hub.folder / "modules.json").unlink()
    folder = fetch(start, *TRANSFORMERS_ALONE)
    assert start(needs_modules=False, HF_HUB_OFFLINE="1").path == folder
    assert start(str(folder), needs_modules=False, HF_HUB_OFFLINE="1").path == folder


def test_a_given_pooling_does_not_keep_the_modules_from_being_fetched(start: Starter) -> None:
    folder = fetch(start, *TRANSFORMERS_ALONE)
    assert start(needs_modules=False).path == folder
    assert (folder / "modules.json").is_file()


@pytest.mark.parametrize(
    "missing",
    [
        *("model.safetensors", "1_Pooling/config.json"),
        *full("config.json", "tokenizer.json", "tokenizer_config.json", "2_Dense/config.json"),
        *full("2_Dense/model.safetensors", "config_sentence_transformers.json", "sentence_bert_config.json"),
    ],
)
def test_each_file_that_changes_rows_is_missed(start: Starter, missing: str) -> None:
    folder = fetch(start, *(name for name in (*TRANSFORMERS_ALONE, *SENTENCE) if name != missing))
    assert f"{folder} was fetched in part: it may lack {missing}; " in start(HF_HUB_OFFLINE="1").error
    assert start().path == folder
    assert (folder / missing).is_file()


def test_a_module_may_have_no_file(hub: LocalHub, start: Starter) -> None:
    """Normalize has none; what the repository lacks has a mark."""
    (hub.folder / "sentence_bert_config.json").unlink()
    folder = fetch(start, *TRANSFORMERS_ALONE, *SENTENCE)
    assert start(HF_HUB_OFFLINE="1").path == folder


@pytest.mark.parametrize("missing", [0, *full(1)])
def test_a_missing_shard(hub: LocalHub, start: Starter, missing: int) -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (hub.folder / "model.safetensors").unlink()
    for shard in shards:
        (hub.folder / shard).write_bytes(NO_TENSORS)
    write(hub.folder / "model.safetensors.index.json", {"weight_map": {"a": shards[0], "b": shards[1]}})
    fetch(start, *TRANSFORMERS_ALONE, "model.safetensors.index.json", shards[1 - missing], *SENTENCE)
    assert f"may lack {shards[missing]}; " in start(HF_HUB_OFFLINE="1").error
    assert (start().path / shards[missing]).is_file()


def test_weights_that_are_pickles_are_missed_by_who_converts_them_alone(hub: LocalHub, start: Starter) -> None:
    """A start asks what else there is first, and then for the pickles that it lacks safetensors of."""
    (hub.folder / "model.safetensors").rename(hub.folder / "pytorch_model.bin")
    folder = start().path
    assert not (folder / "pytorch_model.bin").exists()
    assert start(more=PICKLED_PATTERNS).path == folder
    (folder / "pytorch_model.bin").unlink()
    for model_id, revision in ((MODEL, None), (MODEL, COMMIT), (str(folder), None)):
        found = start(model_id, revision=revision, more=PICKLED_PATTERNS, HF_HUB_OFFLINE="1")
        assert f"{folder} was fetched in part: it lacks pytorch_model.bin; " in found.error


@pytest.mark.full
def test_a_link_to_a_blob_that_was_removed(start: Starter) -> None:
    folder = start().path
    (folder / "tokenizer.json").resolve().unlink()
    assert f"{folder} was fetched in part: it lacks tokenizer.json; " in start(HF_HUB_OFFLINE="1").error
    assert start().path == folder
    assert (folder / "tokenizer.json").is_file()


@pytest.mark.full
@pytest.mark.parametrize("revision", ["v1", *full("89abcdef0123456789abcdef0123456789abcdef")])
def test_a_revision_of_which_there_is_a_part(start: Starter, revision: str) -> None:
    fetch(start, *TRANSFORMERS_ALONE, revision=revision)
    assert "may lack modules.json" in start(revision=revision, HF_HUB_OFFLINE="1").error
    assert (start(revision=revision).path / "modules.json").is_file()


@pytest.mark.full
def test_a_reference_to_a_snapshot_that_is_gone(start: Starter) -> None:
    write(start.cache / "models--org--model" / "refs" / "main", {})
    (start.cache / "models--org--model" / "refs" / "main").write_text(COMMIT)
    assert "can't be fetched from the hub" in start(HF_HUB_OFFLINE="1").error
    snapshot_of(start).mkdir(parents=True)
    assert "may lack modules.json, " in start(HF_HUB_OFFLINE="1").error
    assert (start().path / "modules.json").is_file()


@pytest.mark.full
def test_a_whole_download_by_an_older_library(hub: LocalHub, start: Starter) -> None:
    """It kept no listing. Only who fetches whole repositories has .gitattributes."""
    for name in ("modules.json", "sentence_bert_config.json"):
        (hub.folder / name).unlink()
    (hub.folder / ".gitattributes").write_text("")
    folder = fetch(start, ".gitattributes", *TRANSFORMERS_ALONE, "tokenizer_config.json")
    assert start(HF_HUB_OFFLINE="1").path == folder
    half = folder.parents[1] / "blobs" / "0123.incomplete"
    half.write_text("")
    assert "may lack modules.json" in start(HF_HUB_OFFLINE="1").error


@pytest.mark.full
def test_files_that_were_fetched_into_a_folder_one_by_one(hub: LocalHub, start: Starter, tmp_path: Path) -> None:
    """The library keeps no listing there, but a note on each file."""
    fetch(start, *TRANSFORMERS_ALONE, local_dir=tmp_path / "own")
    assert "may lack modules.json; fetch all of its repository" in start(str(tmp_path / "own")).error
    assert start(str(tmp_path / "own"), needs_modules=False).error == ""
    fetch(start, *SENTENCE, local_dir=tmp_path / "own")
    assert start(str(tmp_path / "own")).error == ""
    (tmp_path / "own" / "modules.json").unlink()
    (hub.folder / ".gitattributes").write_text("")
    fetch(start, ".gitattributes", local_dir=tmp_path / "own")  # of a whole repository
    assert start(str(tmp_path / "own")).error == ""
    (tmp_path / "own" / ".cache" / "huggingface" / "download" / "a.incomplete").write_text("")
    assert "may lack modules.json" in start(str(tmp_path / "own")).error


@pytest.mark.parametrize("missing", ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"])
def test_a_download_into_a_folder_that_did_not_end(tmp_path: Path, missing: str) -> None:
    files = (*TRANSFORMERS_ALONE, *SENTENCE)
    for name in files:
        write(tmp_path / name, MODULES if name == "modules.json" else {})
    listing = tmp_path / ".cache" / "huggingface" / "trees" / f"{COMMIT}.json"
    write(listing, {"format_version": 1, "files": dict.fromkeys((*files, "vocab.txt"), 1)})
    assert find_here(str(tmp_path)) is not None
    (tmp_path / missing).unlink()
    with pytest.raises(ModelError, match=f"was fetched in part: it lacks {missing}; "):
        find_here(str(tmp_path))
    listing.unlink()
    assert find_here(str(tmp_path)) is not None  # a folder that somebody made is whole
