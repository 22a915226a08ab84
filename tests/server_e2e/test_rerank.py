"""Reranking through a whole server: the pairs of a tiny cross-encoder, and late interaction as its library does it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from engine import fake
from tests.engine.sentence_models import text_of, words
from tests.engine.tiny_models import SCORING_SEQUENCES, arbitrary, save, save_whole
from tests.parity.test_declared_templates import library_ids, made
from tests.server_e2e.running import Server, serving

pytestmark = pytest.mark.holds("Reranking")

DIMENSIONS = 16
QUERY, *DOCUMENTS = arbitrary((4, 3, 9, 1, 20, 3))
BODY = {"query": text_of(QUERY), "texts": [text_of(document) for document in DOCUMENTS]}
CLS, SEP = 2, 3


def save_tokenizer(folder: Path) -> None:
    """Of words, with a first and a last token and pairs as BERT has them."""
    backend = words()
    backend.post_processor = TemplateProcessing(
        single="w2 $A w3", pair="w2 $A w3 $B:1 w3:1", special_tokens=[("w2", CLS), ("w3", SEP)]
    )
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", mask_token="[UNK]"
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = save_whole("bert", tmp_path_factory.mktemp("model"), SCORING_SEQUENCES, num_labels=1)
    save_tokenizer(model)
    flags = ("--engine", "fake", "--fake-dim", str(DIMENSIONS), "--model-id", str(model))
    with serving(*flags, folder=tmp_path_factory.mktemp("rerank")) as running:
        yield running


def test_each_pair_gets_the_score_of_its_own_ids(server: Server) -> None:
    reply = server.request("POST", "/rerank", {**BODY, "raw_scores": True}, accept="application/octet-stream")

    assert reply.status == 200, reply.body
    pairs = [np.array([CLS, *QUERY, SEP, *document, SEP], np.int32) for document in DOCUMENTS]
    expected = [fake.row(fake.table(DIMENSIONS), pair.tobytes())[0] for pair in pairs]
    assert np.frombuffer(reply.body, "<f4").tolist() == expected
    assert reply.headers["x-embedline-prompt-tokens"] == str(sum(map(len, pairs)))
    ranked = server.request("POST", "/rerank", {**BODY, "raw_scores": True}).json()
    assert [item["index"] for item in ranked] == np.argsort(-np.array(expected), kind="stable").tolist()


def test_a_reranker_gives_no_embeddings_and_says_what_it_is_for(server: Server) -> None:
    refused = server.embed("w5")
    assert refused.status == 400
    assert "it is for rerank" in refused.json()["error"]["message"]


def test_a_pair_that_is_too_long_is_cut_or_refused(server: Server) -> None:
    long = {**BODY, "texts": ["w7", "w7 " * 5000]}

    cut = server.request("POST", "/rerank", long)
    assert (cut.status, cut.headers["x-embedline-truncated-inputs"]) == (200, "1")
    refused = server.request("POST", "/rerank", {**long, "truncate": False})
    assert refused.status == 422
    assert refused.json()["error"].startswith("texts[1] is longer than")


def test_pairs_go_into_the_chat_template_that_a_model_declares(tmp_path: Path) -> None:
    own = "Find what answers it"
    model = made(tmp_path, "Qwen3-Reranker's form", scores=False, prompt=own)
    pair = ("Where is Köln?", "By the Rhine.\n")
    flags = ("--engine", "fake", "--fake-dim", str(DIMENSIONS), "--model-id", str(model.folder))
    (tmp_path / "server").mkdir()
    with serving(*flags, folder=tmp_path / "server") as running:
        for instruction in (None, "Is it a joke?", ""):
            fields = {} if instruction is None else {"instruction": instruction}
            body = {"query": pair[0], "texts": [pair[1]], "raw_scores": True, **fields}
            reply = running.request("POST", "/rerank", body, accept="application/octet-stream")
            ids = np.array(library_ids(model.library, pair, own if instruction is None else instruction), np.int32)
            assert np.frombuffer(reply.body, "<f4").tolist() == [fake.row(fake.table(DIMENSIONS), ids.tobytes())[0]]


@pytest.mark.full
def test_late_interaction_is_sentence_transformers_own(tmp_path: Path) -> None:
    bare = save("bert", tmp_path / "bare")
    save_tokenizer(bare)
    expansion = {"strategy": "fixed", "attend": False, "token": "w9", "length": 12}
    modules = [
        Transformer(str(bare), query_expansion=expansion, document_length=16),
        MultiVectorMask(skiplist_words=[f"w{number}" for number in DOCUMENTS[1][:4]]),
        Normalize(module_input_name="token_embeddings"),
    ]
    markers = {"query": "w10 ", "document": "w11 "}
    reference = MultiVectorEncoder(modules=modules, prompts=markers, device="cpu")
    saved = tmp_path / "saved"
    reference.save_pretrained(str(saved))
    expected = [
        float(reference.similarity(reference.encode_query([BODY["query"]]), reference.encode_document([text]))[0, 0])
        for text in BODY["texts"]
    ]

    with serving("--model-id", str(saved), "--engine", "transformers", "--devices", "cpu", folder=tmp_path) as server:
        reply = server.request("POST", "/rerank", BODY, accept="application/octet-stream")

    assert reply.status == 200, reply.body
    assert np.abs(np.frombuffer(reply.body, "<f4") - expected).max() <= 1e-4
