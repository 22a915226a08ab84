"""`embedline inspect` of folders of many shapes: what the model is for, and which file says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.machine.cuda_driver import Cuda
from server.commands import inspect as command
from server.commands.inspect import inspect
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.engine.model.detection import shapes

pytestmark = pytest.mark.holds("What a model is for")

Facts = dict[str, Any]


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_cuda", lambda _: Cuda(why_none="there is no CUDA driver here"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def facts(capsys: pytest.CaptureFixture[str], folder: Path, **model: Any) -> Facts:
    settings = Settings(models=(ModelSettings(model_id=str(folder), **model),))
    assert inspect(settings, as_json=True) == 0
    found: Facts = json.loads(capsys.readouterr().out)
    return found


def shown(task: str, source: str, outputs: str, **others: Any) -> tuple[str, Facts]:
    """Who says so, and facts."""
    return source, {"task": task, "outputs": outputs.split(), **others}


MAX_OF_EACH = "weights of vocabulary entries: relu, max over the tokens"
SHAPES: dict[str, tuple[Callable[[Path], None], dict[str, Any], tuple[str, Facts]]] = {
    "an embedding model": (
        shapes.embedding,
        {},
        shown("embed", "modules.json", "pooled tokens", pooling="cls", dimensions=4, normalize=True),
    ),
    "a masked language model": (shapes.masked_lm, {}, shown("embed", "no head", "pooled tokens", pooling="mean")),
    "the same for SPLADE": (
        shapes.masked_lm,
        {"pooling": "splade"},
        shown("sparse", "--pooling splade", "sparse", heads=[MAX_OF_EACH]),
    ),
    "SPLADE": (
        shapes.splade,
        {},
        shown(
            "sparse",
            "p1/config.json",
            "sparse",
            heads=["weights of vocabulary entries: log1p_relu, sum over the tokens"],
        ),
    ),
    "SPLADE without inference for queries": (
        shapes.inference_free_splade,
        {},
        shown(
            "sparse",
            "document_1_SpladePooling/config.json",
            "sparse",
            heads=[MAX_OF_EACH],
            queries="a weight for each token, from query_0_SparseStaticEmbedding",
            tokenizer="WordLevel",
        ),
    ),
    "a cross-encoder": (
        shapes.cross_encoder,
        {},
        shown(
            "rerank",
            "config.json: BertForSequenceClassification with 1 label",
            "logits",
            heads=["one score"],
            activation="identity",
            labels=["LABEL_0"],
        ),
    ),
    "a reward model": (
        shapes.reward,
        {},
        shown("rerank", "config.json: LlamaForSequenceClassification with 1 label", "logits", activation="sigmoid"),
    ),
    "a classifier": (
        shapes.classifier,
        {},
        shown(
            "classify",
            "config.json: RobertaForSequenceClassification with 7 labels",
            "logits",
            heads=["a score for each of 7 labels"],
            labels=[*(f"feeling {index}" for index in range(5)), "…"],
            activation="sigmoid",
        ),
    ),
    "the same for its rows": (
        shapes.classifier,
        {"task": "embed"},
        shown("embed", "--task embed", "pooled tokens", pooling="mean"),
    ),
    "a token classifier": (
        shapes.token_classifier,
        {},
        shown(
            "token-classify",
            "config.json: BertForTokenClassification",
            "token_logits",
            labels=["O", "B-PER", "I-PER"],
            activation="softmax",
        ),
    ),
    "static embeddings": (
        shapes.static,
        {},
        shown("embed", "modules.json", "pooled tokens", engine="static", dimensions=6, normalize=True),
    ),
    "model2vec": (
        shapes.model2vec,
        {},
        shown("embed", "modules.json", "pooled tokens", engine="static", dimensions=6, vocab_size=14),
    ),
    "Qwen3-Reranker": (
        shapes.qwen3_reranker,
        {},
        shown(
            "rerank",
            "its chat template is that of Qwen3-Reranker",
            "logits",
            template="Qwen3-Reranker",
            heads=["next token 5 against 6"],
            activation="sigmoid",
            instruction="Given a web search query, retrieve relevant passages that answer the query",
        ),
    ),
    "mxbai-rerank-v2": (
        shapes.mxbai_reranker,
        {},
        shown(
            "rerank",
            "its name is that of mxbai-rerank-v2",
            "logits",
            template="mxbai-rerank-v2",
            heads=["next token 8 against 9"],
            instruction=None,
        ),
    ),
    "bge-reranker-v2-gemma": (
        shapes.gemma_reranker,
        {"template": "bge-reranker-v2-gemma"},
        shown(
            "rerank",
            "--template",
            "logits",
            template="bge-reranker-v2-gemma",
            heads=["next token 7, raw"],
        ),
    ),
    "a CrossEncoder with a chat template": (
        shapes.logit_score,
        {},
        shown(
            "rerank",
            "s1/config.json",
            "logits",
            template="Qwen3-Reranker",
            instruction="Is it on the web?",
            default_prompt=None,
        ),
    ),
    "bge-m3": (
        shapes.bge_m3,
        {},
        shown(
            "embed",
            "sparse_linear.safetensors and colbert_linear.safetensors beside the model",
            "pooled tokens sparse multi_vector",
            heads=[
                "weights of tokens, without 3 special ones",
                "a row of 8 for each token (colbert_linear.safetensors)",
            ],
            late_interaction={"skips_first": True},
        ),
    ),
    "PyLate": (
        shapes.pylate,
        {},
        shown(
            "late-interaction",
            "modules.json and config_sentence_transformers.json",
            "multi_vector",
            heads=["a row of 4 for each token (d1)"],
            dimensions=4,
            late_interaction={
                "query_marker_id": 14,
                "document_marker_id": 15,
                "query_length": 16,
                "expansion_id": 4,
                "document_length": 40,
                "skipped_ids": "1 tokens",
            },
        ),
    ),
    "a MultiVectorEncoder": (
        shapes.multi_vector,
        {},
        shown(
            "late-interaction",
            "modules.json and config_sentence_transformers.json",
            "multi_vector",
            prompts={"document": "text: "},
            late_interaction={
                "query_marker_id": 14,
                "query_length": 12,
                "expansion_id": 4,
                "attends_to_expansion": True,
                "document_length": 50,
                "skipped_ids": "1 tokens",
            },
        ),
    ),
    "Stanford's ColBERT": (
        shapes.stanford_colbert,
        {},
        shown(
            "late-interaction",
            "config.json: HF_ColBERT",
            "multi_vector",
            heads=["a row of 4 for each token (model.safetensors)"],
            late_interaction={
                "query_marker_id": 12,
                "document_marker_id": 13,
                "query_length": 20,
                "expansion_id": 4,
                "document_length": 30,
                "skipped_ids": "1 tokens",
            },
        ),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_folder_is_and_who_says_so(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build, flags, (source, expected) = SHAPES[name]
    build(tmp_path / "model")

    found = facts(capsys, tmp_path / "model", **flags)

    assert {fact: found.get(fact) for fact in expected} == expected
    assert found["sources"]["task"] == source
    assert ("pooling" in found) == ("pooled" in found["outputs"])


def test_text_has_the_same_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes.classifier(tmp_path / "model")
    assert inspect(Settings(models=(ModelSettings(model_id=str(tmp_path / "model")),)), as_json=False) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "task classify (config.json: RobertaForSequenceClassification with 7 labels)" in lines
    assert "labels feeling 0 (config.json: 7)" in lines
    assert "activation sigmoid" in lines


@pytest.mark.parametrize(("shape", "is_said"), [(shapes.masked_lm, True), (shapes.classifier, False)])
def test_what_was_assumed_of_the_pooling_is_said_where_there_is_one(
    shape: Callable[[Path], None], is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape(tmp_path)
    notes = facts(capsys, tmp_path)["notes"]
    assert any("no modules.json: mean pooling" in note for note in notes) is is_said
