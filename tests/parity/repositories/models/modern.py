"""Embedding models on ModernBERT and NomicBERT, whose config.json names code of its own, which is never run."""

from functools import partial
from typing import Any

from tests.parity.repositories.facts import Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.models.bert import QUERY, UNCASED
from tests.parity.repositories.models.families import MODERNBERT, published
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

NOMIC_PREFIXES = ("query: search_query: ", "document: search_document: ")
_modern = partial(embedding, family=MODERNBERT, words=Words.MODERN, length=8192)

_MODERNBERT: tuple[Repository, ...] = (
    _modern("Alibaba-NLP/gte-modernbert-base", pooling="cls", is_normalized=False, rows=(Source.VLLM_GTE, Source.MTEB)),
    _modern(
        "nomic-ai/modernbert-embed-base",
        pooling="mean",
        rows=(Source.FASTEMBED_RS, Source.MTEB),
        card=NOMIC_PREFIXES,
    ),
    _modern(
        "ibm-granite/granite-embedding-english-r2",
        pooling="cls",
        is_normalized=False,
        rows=(Source.BGE_NOTES, Source.MTEB),
        global_rope_theta=80000.0,
    ),
)

_NOMIC: dict[str, Any] = published("nomic-embed-text-v1.5")
# the same in the words of transformers' class, in small sizes
_NOMIC_LIBRARY: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 256,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "type_vocab_size": 2,
    "vocab_size": 320,
}
_NOMIC_SOURCES = (Source.CARD, Source.VLLM_NOMIC, Source.FASTEMBED)
_ARCTIC_SOURCES = (Source.VLLM_ARCTIC, Source.FASTEMBED_RS, Source.MTEB)

_NOMICBERT: tuple[Repository, ...] = tuple(
    embedding(
        name,
        _NOMIC,
        pooling,
        words=Words.UNCASED,
        length=length,
        model_max_length=8192,
        is_normalized=is_normalized,
        rows=rows,
        ids=UNCASED,
        card=card,
        library=_NOMIC_LIBRARY,
    )
    for name, pooling, is_normalized, length, rows, card in (
        ("nomic-ai/nomic-embed-text-v1", "mean", True, 8192, _NOMIC_SOURCES, NOMIC_PREFIXES),
        ("nomic-ai/nomic-embed-text-v1.5", "mean", False, 8192, _NOMIC_SOURCES, NOMIC_PREFIXES),
        ("Snowflake/snowflake-arctic-embed-m-long", "cls", True, 2048, _ARCTIC_SOURCES, (QUERY,)),
    )
)

REPOSITORIES = (*_MODERNBERT, *_NOMICBERT)
