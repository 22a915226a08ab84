"""A classifier of texts and one of tokens through a whole server, as transformers' own pipelines have them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from baseten_performance_client import PerformanceClient
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    TextClassificationPipeline,
    TokenClassificationPipeline,
)

from tests.server_e2e.running import Server, serving
from tests.tokenizer_pool.builders import bert_folder

TEXT = "The harbour at seven; nobody's missed the ferry-boat"
TEXTS = [TEXT, "x", "SHOUTING At The HARBOUR", TEXT * 9]
LABELS = {"tokens": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], "texts": ["bad", "so-so", "good"]}
CLASSES: dict[str, Any] = {"tokens": BertForTokenClassification, "texts": BertForSequenceClassification}
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
CONFIG = """
engine = "transformers"
devices = "cpu"

[[model]]
model-id = "tokens"

[[model]]
model-id = "texts"
"""

# by parts: tests/server/requests/test_token_labels.py, tests/engine/transformers
pytestmark = pytest.mark.full


def save(folder: Path, name: str) -> None:
    torch.manual_seed(1)
    names = dict(enumerate(LABELS[name]))
    others: dict[str, Any] = {"vocab_size": 400, "max_position_embeddings": 40, "initializer_range": 0.3}
    config = BertConfig(**SHAPE, **others, id2label=names, label2id={label: at for at, label in names.items()})
    (folder / name).mkdir()
    bert_folder(folder / name, tokenizer_class="BertTokenizerFast", model_max_length=40)
    CLASSES[name](config).save_pretrained(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classifiers")
    for name in LABELS:
        save(path, name)
    (path / "embedline.toml").write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving("--config", "embedline.toml", folder=folder) as running:
        yield running


def loaded(folder: Path, name: str) -> dict[str, Any]:
    return {
        "model": CLASSES[name].from_pretrained(folder / name).eval(),
        "tokenizer": AutoTokenizer.from_pretrained(folder / name),
        "device": "cpu",
    }


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
def test_spans_of_tokens(server: Server, folder: Path, strategy: str) -> None:
    body = {"inputs": [[text] for text in TEXTS], "aggregation_strategy": strategy, "model": "tokens"}
    reply = server.request("POST", "/predict_tokens", body)

    pipeline = TokenClassificationPipeline(**loaded(folder, "tokens"), aggregation_strategy=strategy)  # type: ignore[no-untyped-call]
    assert reply.headers["x-embedline-truncated-inputs"] == "1"
    for text, found in zip(TEXTS, reply.json(), strict=True):
        expected: Any = pipeline(text)
        assert [(each["token"], each["start"], each["end"]) for each in found] == [
            (text[each["start"] : each["end"]], each["start"], each["end"]) for each in expected
        ]
        assert [each["results"] for each in found] == [
            {each["entity_group"]: pytest.approx(float(each["score"]), abs=1e-5)} for each in expected
        ]


def test_raw_scores_of_every_token(server: Server, folder: Path) -> None:
    body = {"inputs": TEXTS, "raw_scores": True, "model": "tokens"}
    reply = server.request("POST", "/predict_tokens", body, accept="application/octet-stream")

    offsets = np.frombuffer(reply.body, "<u4", len(TEXTS) + 1)
    rows = np.frombuffer(reply.body, "<f4", offset=offsets.nbytes).reshape(-1, len(LABELS["tokens"]))
    theirs = loaded(folder, "tokens")
    for text, start, stop in zip(TEXTS, offsets, offsets[1:], strict=False):
        with torch.no_grad():
            expected = theirs["model"](**theirs["tokenizer"](text, return_tensors="pt", truncation=True)).logits[0]
        assert np.abs(rows[start:stop] - expected.numpy()).max() <= 1e-5


def test_labels_of_texts_and_pairs(server: Server, folder: Path) -> None:
    inputs = [[TEXT], ["The ferry", "at seven"], ["x"]]
    reply = server.request("POST", "/predict", {"inputs": inputs, "model": "texts"})

    pipeline = TextClassificationPipeline(**loaded(folder, "texts"), top_k=None)  # type: ignore[no-untyped-call]
    for texts, found in zip(inputs, reply.json(), strict=True):
        expected: Any = pipeline(dict(zip(("text", "text_pair"), texts, strict=False)))
        assert [each["label"] for each in found] == [each["label"] for each in expected]
        assert [each["score"] for each in found] == pytest.approx([each["score"] for each in expected], abs=1e-5)


@pytest.mark.clients
def test_basetens_client(server: Server) -> None:
    client = PerformanceClient(base_url=f"http://127.0.0.1:{server.port}", api_key="none")
    answered = client.classify(inputs=TEXTS[:3], model="texts")
    bodies = [{"inputs": [[text]], "model": "tokens"} for text in TEXTS[:3]]
    tokens = client.batch_post("/predict_tokens", payloads=bodies)

    expected = server.request("POST", "/predict", {"inputs": [[text] for text in TEXTS[:3]], "model": "texts"}).json()
    assert [[each.label for each in item] for item in answered.data] == [
        [each["label"] for each in item] for item in expected
    ]
    # it has a token for each of transformers', special ones included
    assert [item[0][0]["token"] for item in tokens.data] == ["[CLS]"] * 3
