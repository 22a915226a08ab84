"""Embedding models on decoders: Qwen3-Embedding, EmbeddingGemma, bge-multilingual-gemma2."""

from typing import Any

from tests.parity.repositories.configs import published
from tests.parity.repositories.facts import Ids, Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

# as published of Qwen3-0.6B; length and vocabulary are Qwen3-Embedding's
QWEN3: dict[str, Any] = published("Qwen3-Embedding-0.6B")
_QWEN3_IDS = Ids(of="Qwen3-Embedding-0.6B", first="", last="<|endoftext|>", source=Source.QWEN3_CARD)
GEMMA_IDS = Ids(
    of="gemma-2",
    text="How are you doing?",
    ids=(2, 2299, 708, 692, 3900, 235336),
    first="<bos>",
    last="",
    source=Source.JS_GEMMA,
)
_4B: dict[str, Any] = {"hidden_size": 2560, "vocab_size": 151665, "max_position_embeddings": 40960}
_8B: dict[str, Any] = {**_4B, "hidden_size": 4096, "tie_word_embeddings": False}
SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_QWEN3_PROMPTS = {"query": SEARCH, "document": ""}
_GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_GEMMA: dict[str, Any] = published("embeddinggemma-300m")
_GEMMA2: dict[str, Any] = published("bge-multilingual-gemma2")
_IDENTITY = "torch.nn.modules.linear.Identity"

REPOSITORIES: tuple[Repository, ...] = (
    *(
        embedding(
            f"Qwen/Qwen3-Embedding-{size}",
            {**QWEN3, **sizes},
            Words.QWEN3,
            "last",
            length=32768,
            rows=(Source.CARD, Source.MTEB, *sources),
            ids=_QWEN3_IDS,
            prompts=_QWEN3_PROMPTS,
        )
        for size, sizes, sources in (("0.6B", {}, (Source.VLLM_GTE,)), ("4B", _4B, ()), ("8B", _8B, ()))
    ),
    embedding(
        "google/embeddinggemma-300m",
        _GEMMA,
        Words.GEMMA,
        "mean",
        length=2048,
        dense=((3072, False, _IDENTITY), (768, False, _IDENTITY)),
        rows=(Source.CARD, Source.VLLM_GEMMA, Source.FASTEMBED_RS),
        prompts=_GEMMA_PROMPTS,
        flags={"add_bos_token": True, "add_eos_token": True},
    ),
    embedding(
        "BAAI/bge-multilingual-gemma2",
        _GEMMA2,
        Words.GEMMA_FIRST,
        "last",
        length=8192,
        rows=(Source.VLLM_CLASSES, Source.MTEB),
        ids=GEMMA_IDS,
        prompts={"web_search_query": "<instruct>Given a web search query, retrieve relevant passages\n<query>"},
        flags={"add_bos_token": True, "add_eos_token": False},
    ),
)
