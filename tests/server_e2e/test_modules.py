"""A model with modules after its pooling through a whole server: rows, fewer dimensions, rows of single tokens."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize

from tests.engine.sentence_models import SEQLENS, encoded, save_chain
from tests.engine.tiny_models import HIDDEN_SIZE, arbitrary
from tests.server_e2e.running import Server, serving

SEQUENCES = arbitrary(SEQLENS)
TEXTS = [" ".join(f"w{id}" for id in sequence) for sequence in SEQUENCES]
SIZE = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    modules = (Dense(2 * HIDDEN_SIZE, SIZE), LayerNorm(SIZE), Normalize())
    return save_chain(tmp_path_factory.mktemp("saved") / "model", ("max", "mean"), *modules)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving("--model-id", str(model), "--devices", "cpu", folder=tmp_path_factory.mktemp("modules")) as running:
        yield running


@pytest.mark.full
def test_rows_and_fewer_dimensions(server: Server, model: Path) -> None:
    expected = encoded(model, SEQUENCES)
    whole = server.embed(TEXTS, encoding_format="bytes")
    cut = server.embed(TEXTS, encoding_format="bytes", dimensions=7)
    assert (whole.status, cut.status) == (200, 200), (whole.body, cut.body)

    assert np.abs(np.frombuffer(whole.body, "<f4").reshape(-1, SIZE) - expected).max() <= 1e-5
    shorter = expected[:, :7] / np.linalg.norm(expected[:, :7], axis=1, keepdims=True)
    assert np.abs(np.frombuffer(cut.body, "<f4").reshape(-1, 7) - shorter).max() <= 1e-5
    assert server.embed(TEXTS, dimensions=SIZE + 1).status == 400


@pytest.mark.full
def test_rows_of_tokens_are_the_transformers_own(server: Server) -> None:
    reply = server.request("POST", "/embed_all", {"inputs": TEXTS[:2]})
    assert reply.status == 200, reply.body
    rows = reply.json()
    assert [len(text) for text in rows] == [len(sequence) for sequence in SEQUENCES[:2]]
    assert {len(row) for text in rows for row in text} == {HIDDEN_SIZE}
