"""`embedline inspect` of folders of many shapes: what the model is for, and which file says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.commands.inspect import inspect
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.engine.model.detection import shapes
from tests.server.commands.doctor_runs import inspected as facts

pytestmark = [pytest.mark.holds("What a model is for"), pytest.mark.usefixtures("cache")]

Facts = dict[str, Any]


def shape(
    build: Callable[[Path], None],
    task: str,
    source: str,
    outputs: str,
    flags: dict[str, str] | None = None,
    **more: Any,
) -> tuple[Callable[[Path], None], dict[str, str], str, Facts]:
    """A folder, the flags that it is looked at with, who says what it is for, and facts."""
    return build, flags or {}, source, {"task": task, "outputs": outputs.split(), **more}


MAX_OF_EACH = "weights of vocabulary entries: relu, max over the tokens"
SHAPES = {
    "an embedding model": shape(
        shapes.embedding, "embed", "modules.json", "pooled tokens", pooling="cls", dimensions=4, normalize=True
    ),
    "a masked language model": shape(shapes.masked_lm, "embed", "no head", "pooled tokens", pooling="mean"),
    "the same for SPLADE": shape(
        shapes.masked_lm, "sparse", "--pooling splade", "sparse", flags={"pooling": "splade"}, heads=[MAX_OF_EACH]
    ),
    "SPLADE": shape(
        shapes.splade,
        "sparse",
        "p1/config.json",
        "sparse",
        heads=["weights of vocabulary entries: log1p_relu, sum over the tokens"],
    ),
    "SPLADE without inference for queries": shape(
        shapes.inference_free_splade,
        "sparse",
        "document_1_SpladePooling/config.json",
        "sparse",
        heads=[MAX_OF_EACH],
        queries="a weight for each token, from query_0_SparseStaticEmbedding",
        tokenizer="WordLevel",
    ),
    "a cross-encoder": shape(
        shapes.cross_encoder,
        "rerank",
        "config.json: BertForSequenceClassification with 1 label",
        "logits",
        heads=["one score"],
        activation="identity",
        labels=["LABEL_0"],
    ),
    "a reward model": shape(
        shapes.reward,
        "rerank",
        "config.json: LlamaForSequenceClassification with 1 label",
        "logits",
        activation="sigmoid",
    ),
    "a classifier": shape(
        shapes.classifier,
        "classify",
        "config.json: RobertaForSequenceClassification with 7 labels",
        "logits",
        heads=["a score for each of 7 labels"],
        labels=[*(f"feeling {index}" for index in range(5)), "…"],
        activation="sigmoid",
    ),
    "the same for its rows": shape(
        shapes.classifier, "embed", "--task embed", "pooled tokens", flags={"task": "embed"}, pooling="mean"
    ),
    "a token classifier": shape(
        shapes.token_classifier,
        "token-classify",
        "config.json: BertForTokenClassification",
        "token_logits",
        labels=["O", "B-PER", "I-PER"],
        activation="softmax",
    ),
    "static embeddings": shape(
        shapes.static, "embed", "modules.json", "pooled tokens", engine="static", dimensions=6, normalize=True
    ),
    "model2vec": shape(
        shapes.model2vec, "embed", "modules.json", "pooled tokens", engine="static", dimensions=6, vocab_size=14
    ),
    "Qwen3-Reranker": shape(
        shapes.qwen3_reranker,
        "rerank",
        "its chat template is that of Qwen3-Reranker",
        "logits",
        template="Qwen3-Reranker",
        heads=["next token 5 against 6"],
        activation="sigmoid",
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    "mxbai-rerank-v2": shape(
        shapes.mxbai_reranker,
        "rerank",
        "its name is that of mxbai-rerank-v2",
        "logits",
        template="mxbai-rerank-v2",
        heads=["next token 8 against 9"],
        instruction=None,
    ),
    "bge-reranker-v2-gemma": shape(
        shapes.gemma_reranker,
        "rerank",
        "--template",
        "logits",
        flags={"template": "bge-reranker-v2-gemma"},
        template="bge-reranker-v2-gemma",
        heads=["next token 7, raw"],
    ),
    "a CrossEncoder with a chat template": shape(
        shapes.logit_score,
        "rerank",
        "s1/config.json",
        "logits",
        template="its chat template",
        instruction="Is it on the web?",
        default_prompt=None,
    ),
    "bge-m3": shape(
        shapes.bge_m3,
        "embed",
        "sparse_linear.safetensors and colbert_linear.safetensors beside the model",
        "pooled tokens sparse multi_vector",
        heads=["weights of tokens, without 3 special ones", "a row of 8 for each token (colbert_linear.safetensors)"],
        late_interaction={"skips_first": True},
    ),
    "PyLate": shape(
        shapes.pylate,
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
    "a MultiVectorEncoder": shape(
        shapes.multi_vector,
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
    "Stanford's ColBERT": shape(
        shapes.stanford_colbert,
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
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_folder_is_and_who_says_so(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build, flags, source, expected = SHAPES[name]
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


@pytest.mark.parametrize(("build", "is_said"), [(shapes.masked_lm, True), (shapes.classifier, False)])
def test_what_was_assumed_of_the_pooling_is_said_where_there_is_one(
    build: Callable[[Path], None], is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path)
    notes = facts(capsys, tmp_path)["notes"]
    assert any("no modules.json: mean pooling" in note for note in notes) is is_said
