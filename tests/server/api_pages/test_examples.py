"""The requests on the pages of docs/api/ answer what the pages say: one server for each kind of model.

The default model embeds; the others are tiny, with weights of a fixed seed, so pages leave their scores out.
"""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

from tests.documents import ROOT, Example, examples
from tests.server.api_pages.fields import FIELDS
from tests.server_e2e.expected import minilm
from tests.server_e2e.running import Server, serving
from tests.test_readme import is_as_said, output_of, skip_without

EMBEDDER, RERANKER, CLASSIFIER, TAGGER = "8080", "8081", "8082", "8083"
LABELS = {RERANKER: ["LABEL_0"], CLASSIFIER: ["good", "bad"], TAGGER: ["O", "B-PER", "I-PER"]}
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 37}
PAGES = {page.stem: page.read_text() for page in sorted((ROOT / "docs" / "api").glob("*.md"))}
RUN = [(name, example) for name, page in PAGES.items() for example in examples(page)]


def save(folder: Path, labels: list[str], *, of_tokens: bool) -> Path:
    """A model with these labels, of arbitrary weights and with the default model's tokenizer."""
    torch.manual_seed(6)
    ids = {label: index for index, label in enumerate(labels)}
    others: dict[str, Any] = {"max_position_embeddings": 64, "initializer_range": 0.3}
    config = BertConfig(**SHAPE, **others, id2label=dict(enumerate(labels)), label2id=ids)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm() / name, folder)
    (BertForTokenClassification if of_tokens else BertForSequenceClassification)(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Starts the server of a page's port, once."""
    with contextlib.ExitStack() as stack:

        @cache
        def start(port: str) -> Server:
            model = save(tmp_path_factory.mktemp("model"), LABELS[port], of_tokens=port == TAGGER)
            flags = ("--engine", "transformers", "--model-id", str(model), "--served-model-name", "the-model")
            return stack.enter_context(serving(*flags, folder=tmp_path_factory.mktemp("server")))

        yield start


def test_every_api_has_a_page_with_requests_and_answers() -> None:
    assert PAGES.keys() == FIELDS.keys()
    for name, page in PAGES.items():
        assert examples(page), name
        for example in examples(page):
            assert example.language == "bash", name
            assert example.output, name
            assert set(re.findall(r"http://localhost:(\d+)/", example.code)) <= {EMBEDDER, *LABELS}, name


@pytest.mark.full
@pytest.mark.parametrize(("name", "example"), RUN, ids=[name for name, _ in RUN])
def test_a_request_answers_what_the_page_says(
    name: str, example: Example, started: Callable[[str], Server], real_server: Server, tmp_path: Path
) -> None:
    skip_without("bash", "curl")

    def own(address: re.Match[str]) -> str:
        server = real_server if address[1] == EMBEDDER else started(address[1])
        return f"http://localhost:{server.port}/"

    code = re.sub(r"http://localhost:(\d+)/", own, example.code)
    printed = output_of(["bash", "-euo", "pipefail", "-c", code], real_server, tmp_path)

    assert example.output is not None
    assert is_as_said(printed, example.output), printed
