"""Model folders whose files nobody writes by accident: each is refused with one line, and none is followed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.model_folder import check_special_tokens
from engine.types import ModelError
from tests.engine.folder_files import change
from tests.engine.model.detection import shapes
from tests.engine.model.sentence_folder import refusal
from wire import files

pytestmark = pytest.mark.holds("What a model is for")

Build = Callable[[Path], None]


def test_modules_so_deep_that_links_are_not_looked_at(tmp_path: Path) -> None:
    shapes.embedding(tmp_path)
    shapes.modules(tmp_path, root=shapes.MODULE + "Transformer", **{"a/b/c": shapes.MODULE + "Pooling"})
    assert "more than 2 folders deep" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("build", "name", "fields"),
    [
        (shapes.embedding, "config.json", {"architectures": 5}),
        (shapes.splade, "config.json", {"architectures": {"a": 5}}),
        (shapes.classifier, "config.json", {"problem_type": []}),
        (shapes.embedding, shapes.CONFIG, {"default_prompt_name": []}),
        (shapes.qwen3_reranker, "tokenizer.json", {"model": {"vocab": {"yes": [], "no": 1}}}),
        (shapes.pylate, "tokenizer.json", {"added_tokens": [{"content": "[Q] ", "id": float("inf")}]}),
    ],
)
def test_values_of_a_kind_that_nothing_is_made_for(
    tmp_path: Path, build: Build, name: str, fields: dict[str, Any]
) -> None:
    build(tmp_path)
    change(tmp_path / name, **fields)
    assert refusal(tmp_path)


def test_files_that_only_attackers_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes.model2vec(tmp_path)
    weights, deep = tmp_path / "model.safetensors", b"[" * 100_000
    shapes.weights(weights, embeddings=(32, 8), mapping=())
    assert "has no table of embeddings" in refusal(tmp_path)
    weights.write_bytes(len(deep).to_bytes(8, "little") + deep)
    assert "is not a safetensors file" in refusal(tmp_path)
    (tmp_path / "config.json").write_bytes(deep)
    assert "config.json is nested too deeply" in refusal(tmp_path)
    monkeypatch.setattr(files, "MAX_WHOLE_BYTES", 10)
    assert "config.json is too large" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", shapes.CONFIG])
def test_a_link_to_itself(tmp_path: Path, name: str) -> None:
    shapes.embedding(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(name)
    assert refusal(tmp_path).endswith(f"{name} is a link to itself")


@pytest.mark.parametrize("name", ["model.safetensors", "d2/model.safetensors"])
def test_weights_that_are_cut_short(tmp_path: Path, name: str) -> None:
    shapes.embedding(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-1])
    assert f"{name} is cut short: it has {len(whole) - 1} of {len(whole)} bytes" in refusal(tmp_path)
    (tmp_path / name).write_bytes(whole + b"more")
    assert f"{name} has {len(whole) + 4} bytes, and its header tells of {len(whole)}" in refusal(tmp_path)
    model_folder.read(tmp_path, needs_weights=False)


def test_prompts_that_are_no_texts(tmp_path: Path) -> None:
    shapes.embedding(tmp_path)
    change(tmp_path / shapes.CONFIG, prompts={"document": None, "query": 5})
    assert refusal(tmp_path) == f"prompts in {shapes.CONFIG}: 'query' is not a text"


def test_markers_beyond_the_embedding_table(tmp_path: Path) -> None:
    shapes.pylate(tmp_path)
    late = model_folder.read(tmp_path).late
    assert late is not None
    largest = max(late.query_marker_id or 0, late.document_marker_id or 0, late.expansion_id or 0)
    change(tmp_path / "config.json", vocab_size=largest + 1)
    check_special_tokens(model_folder.read(tmp_path))
    change(tmp_path / "config.json", vocab_size=largest)
    with pytest.raises(ModelError, match=f"the token {largest} "):
        check_special_tokens(model_folder.read(tmp_path))
