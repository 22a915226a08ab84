"""Clients of text-embeddings-inference, unchanged: Hugging Face's own, and plain HTTP as its manual shows it."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from numpy.typing import NDArray

from tests.server_e2e.expected import DIMENSIONS, MAX_SEQLEN, ids_of, minilm, rows_of
from tests.server_e2e.running import Reply, Server

pytestmark = pytest.mark.clients

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["hello world", "naïve 日本語 🙂", " ", "word " * 300]


@pytest.fixture
def client(server: Server) -> InferenceClient:
    return InferenceClient(model=f"http://127.0.0.1:{server.port}")


def post(server: Server, path: str, **fields: Any) -> Reply:
    return server.request("POST", path, fields)


def rows_in(reply: Reply) -> NDArray[np.float32]:
    assert reply.status == 200, reply.body
    return np.array(reply.json(), np.float32)


def scaled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths


def reference() -> tokenizers.Tokenizer:
    """The model's own tokenizer, with nothing cut off."""
    own = tokenizers.Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    own.no_truncation()
    own.no_padding()
    return own


def test_feature_extraction(client: InferenceClient) -> None:
    assert np.allclose(client.feature_extraction(TEXTS[0]), scaled(rows_of(TEXTS[:1])))
    exact = client.feature_extraction(TEXTS, normalize=False)
    assert np.array_equal(exact, rows_of(TEXTS))


def test_feature_extraction_with_everything(client: InferenceClient) -> None:
    rows = client.feature_extraction(
        TEXTS[3], normalize=False, truncate=True, truncation_direction="left", dimensions=5, encoding_format="float"
    )
    assert rows.shape == (1, 5)


def test_sentence_similarity(client: InferenceClient) -> None:
    found = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    rows = scaled(rows_of(TEXTS))

    assert np.allclose(found, rows @ rows[0], atol=1e-6)
    assert found[0] == pytest.approx(1.0, abs=1e-6)


def test_a_refusal_reaches_the_client(client: InferenceClient) -> None:
    with pytest.raises(HfHubHTTPError) as refused:
        client.feature_extraction(TEXTS[0], prompt_name="nonsense")

    assert refused.value.response.status_code == 422
    assert refused.value.response.json()["error_type"] == "Validation"


@pytest.mark.holds("TEI's routes")
def test_embed_and_openais_route_give_the_same_rows(server: Server) -> None:
    openai = [item["embedding"] for item in server.embed(TEXTS).json()["data"]]

    assert np.array_equal(rows_in(post(server, "/embed", inputs=TEXTS, normalize=False)), np.array(openai, np.float32))


def test_embed_with_raw_rows_and_headers(server: Server) -> None:
    body = {"inputs": TEXTS, "normalize": False}
    reply = server.request("POST", "/embed", body, accept="application/octet-stream")

    assert np.array_equal(np.frombuffer(reply.body, "<f4").reshape(len(TEXTS), -1), rows_of(TEXTS))
    num_tokens = sum(len(ids_of(text)) for text in TEXTS)
    assert reply.headers["x-compute-tokens"] == reply.headers["x-embedline-prompt-tokens"] == str(num_tokens)
    assert reply.headers["x-compute-characters"] == str(sum(map(len, TEXTS)))
    assert reply.headers["x-embedline-truncated-inputs"] == "1"
    assert int(reply.headers["x-total-time"]) >= int(reply.headers["x-inference-time"])


@pytest.mark.holds("TEI's routes", "Truncation")
def test_truncation(server: Server) -> None:
    long = " ".join(f"{number}" for number in range(300))
    ids = reference().encode(long).ids
    left = [ids[0], *ids[-(MAX_SEQLEN - 1) :]]

    cut = rows_in(post(server, "/embed", inputs=long, truncation_direction="Left", normalize=False))
    by_ids = rows_in(post(server, "/embed", inputs=left, normalize=False))
    refused = post(server, "/embed", inputs=long, truncate=False)

    assert np.array_equal(cut, by_ids)
    assert refused.status == 422
    assert refused.json()["error_type"] == "Validation"


def test_embed_all_has_a_row_for_each_token(server: Server) -> None:
    answer = post(server, "/embed_all", inputs=TEXTS).json()

    assert [len(rows) for rows in answer] == [len(ids_of(text)) for text in TEXTS]
    assert {len(row) for rows in answer for row in rows} == {DIMENSIONS}


def test_tokens_are_those_of_the_models_tokenizer(server: Server) -> None:
    own = reference()
    for is_whole in (True, False):
        answer = post(server, "/tokenize", inputs=TEXTS, add_special_tokens=is_whole).json()
        for text, tokens in zip(TEXTS, answer, strict=True):
            encoding = own.encode(text, add_special_tokens=is_whole)
            assert [token["id"] for token in tokens] == encoding.ids
            assert [token["special"] for token in tokens] == [bool(mask) for mask in encoding.special_tokens_mask]
            for token, (start, stop) in zip(tokens, encoding.offsets, strict=True):
                if not token["special"]:
                    assert (token["start"], token["stop"], token["text"]) == (start, stop, text[start:stop])
                else:
                    assert (token["start"], token["stop"]) == (None, None)


def test_decode_takes_back_what_tokenize_gave(server: Server) -> None:
    own = reference()
    ids = [own.encode(text).ids for text in TEXTS]

    assert post(server, "/decode", ids=ids).json() == [own.decode(each) for each in ids]
    assert post(server, "/decode", ids=ids[0]).json() == [own.decode(ids[0])]
    kept = post(server, "/decode", ids=ids, skip_special_tokens=False).json()
    assert kept == [own.decode(each, skip_special_tokens=False) for each in ids]


def test_info(server: Server) -> None:
    info = server.request("GET", "/info").json()

    assert (info["model_id"], info["served_model_name"]) == (MODEL, MODEL)
    assert info["model_type"] == {"embedding": {"pooling": info["models"][0]["info"]["pooling"]}}
    assert info["max_input_length"] == MAX_SEQLEN
    limits = ("max_concurrent_requests", "max_batch_tokens", "max_client_batch_size", "tokenization_workers")
    assert all(isinstance(info[name], int) for name in limits)
    assert {"model_sha", "model_dtype", "max_batch_requests", "version", "sha", "docker_label"} <= info.keys()
    assert info["auto_truncate"] is True


def test_the_real_models_token_rows_make_up_its_embeddings(real_server: Server) -> None:
    """It takes the mean over tokens and scales it to length 1."""
    rows = rows_in(post(real_server, "/embed", inputs=TEXTS))
    openai = [item["embedding"] for item in real_server.embed(TEXTS).json()["data"]]
    tokens: Sequence[Any] = post(real_server, "/embed_all", inputs=TEXTS).json()
    means = np.array([np.mean(np.array(each, np.float32), axis=0) for each in tokens])

    assert np.allclose(rows, np.array(openai), atol=1e-6)
    assert np.allclose(scaled(means), rows, atol=1e-5)
    similar = json.loads(
        post(real_server, "/similarity", inputs={"source_sentence": TEXTS[0], "sentences": TEXTS}).body
    )
    assert np.allclose(similar, rows @ rows[0], atol=1e-5)
