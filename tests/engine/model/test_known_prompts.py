"""Prompts of cards: which model has which, what tells the model's name, and that the files of a model win."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.known_prompts import with_known
from engine.model.model_folder import ModelFolder
from engine.model.sentence_files import CONFIG
from engine.model.tasks import Task
from tests.engine.folder_files import write
from tests.engine.model.sentence_folder import POOLING, TRANSFORMER

pytestmark = pytest.mark.holds("Prompts")

SENTENCE = "Represent this sentence for searching relevant passages: "
WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "


def folder(path: Path, **config: Any) -> ModelFolder:
    size = {"hidden_size": 32, "vocab_size": 50, "max_position_embeddings": 64}
    write(path / "config.json", {"model_type": "bert", **size, **config})
    write(path / "tokenizer.json", {})
    return model_folder.read(path, needs_weights=False)


# What embeddings-benchmark/mteb evaluates with: mteb/models/model_implementations/{e5,bge,arctic,nomic,…}_models.py.
# The cards of other repositories are in tests/parity/repositories.
@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("intfloat/e5-base-v2", "query: ", "passage: "),
        ("BAAI/bge-large-en", SENTENCE, ""),
        ("Snowflake/snowflake-arctic-embed-m-v1.5", SENTENCE, ""),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", "query: ", ""),
        ("Alibaba-NLP/gte-Qwen2-1.5B-instruct", WEB_SEARCH, ""),
        ("Salesforce/SFR-Embedding-Mistral", WEB_SEARCH, ""),
        ("nvidia/NV-Embed-v2", "Instruct: Given a question, retrieve passages that answer the question\nQuery: ", ""),
        ("GritLM/GritLM-7B", f"<|user|>\n{WEB_SEARCH[10:-8]}\n<|embed|>\n", "<|embed|>\n"),
        ("nvidia/llama-nemotron-embed-1b-v2", "query: ", "passage: "),
    ],
)
def test_by_the_name_that_is_asked_for(tmp_path: Path, name: str, query: str, document: str) -> None:
    found = with_known(folder(tmp_path), name)
    assert (found.prompts["query"], found.prompts["document"]) == (query, document)
    assert found.prompts["passage"] == document
    assert name.partition("/")[2] in found.prompts_source
    assert found.default_prompt_name is None


@pytest.mark.parametrize("name", ["BAAI/bge-m3", "me/e5-base-v2-finetuned", "thenlper/gte-base", "a/my-e5-small", ""])
def test_of_other_names_nothing_is_known(tmp_path: Path, name: str) -> None:
    plain = folder(tmp_path)
    assert with_known(plain, name) == plain


def test_what_tells_the_name(tmp_path: Path) -> None:
    in_cache = tmp_path / "models--intfloat--e5-large" / "snapshots" / "0123"
    with_card, called = tmp_path / "somewhere", tmp_path / "e5-small-v2"
    for path in (in_cache, with_card, called):
        path.mkdir(parents=True)
    (with_card / "README.md").write_text("---\ntags:\n- mteb\nmodel-index:\n- name: e5-base-v2\n  results: []\n---\n")
    sources = {
        path: with_known(folder(path), "a/b").prompts_source.partition("; ")[::2]
        for path in (in_cache, with_card, called)
    }
    assert sources[in_cache] == ("the card of e5-large, known here", "told by the hub's cache")
    assert sources[with_card] == ("the card of e5-base-v2, known here", "told by model-index in README.md")
    assert sources[called] == ("the card of e5-small-v2, known here", "told by its folder")


@pytest.mark.parametrize(
    ("held", "kept"),
    [({"query": "Q: "}, {"query": "Q: "}), ({"query": "", "document": "D: "}, {"query": "", "document": "D: "})],
)
def test_files_win(tmp_path: Path, held: dict[str, str], kept: dict[str, str]) -> None:
    write(tmp_path / CONFIG, {"prompts": held})
    found = with_known(folder(tmp_path), "intfloat/e5-base")
    assert (found.prompts, found.prompts_source) == (kept, CONFIG)


def test_what_the_library_writes_without_prompts_holds_none(tmp_path: Path) -> None:
    """sentence-transformers 5 and 6 write two empty prompts if a model has none."""
    write(tmp_path / CONFIG, {"prompts": {"query": "", "document": ""}})
    assert with_known(folder(tmp_path), "intfloat/e5-base").prompts["query"] == "query: "


def test_an_empty_prompt_that_is_the_default_is_what_the_file_asks_for(tmp_path: Path) -> None:
    write(tmp_path / CONFIG, {"prompts": {"query": "", "document": ""}, "default_prompt_name": "query"})
    write(tmp_path / "modules.json", [TRANSFORMER, POOLING])
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    found = with_known(folder(tmp_path), "intfloat/e5-small-v2")
    assert (found.default_prompt, found.prompts_source) == ("", CONFIG)


def test_a_model_for_something_else_has_none(tmp_path: Path) -> None:
    reranker = dataclasses.replace(folder(tmp_path), task=Task.RERANK)
    assert with_known(reranker, "intfloat/e5-base") == reranker


def test_the_base_of_a_model_is_only_mentioned(tmp_path: Path) -> None:
    found = with_known(folder(tmp_path, _name_or_path="intfloat/e5-base-v2"), "me/mine")
    assert found.prompts == {}
    assert "made of e5-base-v2, whose card asks for prompts" in found.notes[-1]
