"""A static embedding model through a whole server, as sentence-transformers computes it: without special tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers.processors import TemplateProcessing

from tests.engine.rows.sentence_models import words
from tests.engine.tiny_models import VOCAB_SIZE
from tests.server_e2e.running import serving

TEXTS = ["w5 w9 w5", "w7", "w11 w4 w90"]


@pytest.mark.holds("What a model is for")
def test_rows_are_the_librarys(tmp_path: Path) -> None:
    tokenizer = words()
    tokenizer.post_processor = TemplateProcessing(single="w2 $A w3", special_tokens=[("w2", 2), ("w3", 3)])
    table = torch.rand((VOCAB_SIZE, 24), generator=torch.Generator().manual_seed(5)).numpy()
    modules: list[torch.nn.Module] = [StaticEmbedding(tokenizer, embedding_weights=table), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", truncate_dim=10)
    model.save(str(tmp_path / "model"))
    expected = model.encode(TEXTS, normalize_embeddings=True)
    assert expected.shape == (3, 10)

    with serving("--model-id", str(tmp_path / "model"), folder=tmp_path) as server:
        reply = server.embed(TEXTS)
        whole = server.embed(TEXTS, dimensions=24)
        blank = server.embed(["w5", " "])
        server.log.wait_for("runs on the engine static, device cpu")

    for answer, rows in ((reply, expected), (whole, model.encode(TEXTS, truncate_dim=24))):
        found = np.array([item["embedding"] for item in answer.json()["data"]], np.float32)
        np.testing.assert_allclose(found, rows, atol=1e-6)
    assert reply.json()["usage"]["prompt_tokens"] == 7
    assert (blank.status, blank.json()["error"]["param"]) == (400, "input[1]")  # no special token stands in for it
