"""Embedding models of 2026 on Qwen3 and EuroBERT with code of their own: voyage, pplx-embed, jina-embeddings-v5."""

from typing import Any

from tests.parity.repositories.facts import Repository, Served
from tests.parity.repositories.forms import embedding, plain
from tests.parity.repositories.models.decoders import QWEN3
from tests.parity.repositories.own_code import jina_v5, qwen3
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_READ = "tests/parity/repositories/own_code/test_own_code.py"
_SIZE_KEYS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
_0_6B: dict[str, Any] = {key: QWEN3[key] for key in (*_SIZE_KEYS, "num_hidden_layers", "rope_theta", "vocab_size")}
_4B = {**_0_6B, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_hidden_layers": 36}
_NANO = {
    **{"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_key_value_heads": 12},
    **{"num_hidden_layers": 12, "rope_theta": 1000000, "vocab_size": 128256},
}
_VOYAGE = {**qwen3.VOYAGE, **_0_6B, "num_hidden_layers": 12, "num_labels": 2048, "vocab_size": 151936}

VOYAGE = embedding(
    "voyageai/voyage-4-nano",
    _VOYAGE,
    "mean",
    words=Words.QWEN,
    length=32000,
    rows=(Source.VOYAGE, Source.VOYAGE_NOTES, Source.VLLM_VOYAGE, Source.TEI),
    held_by=_READ,
    prompts={
        "query": "Represent the query for retrieving supporting documents: ",
        "document": "Represent the document for retrieval: ",
    },
    also="its layer `linear` makes 2,048 numbers of a row",
    gives=2048,
)
_PPLX_ALSO = "rounded: 127 times tanh, from -127 to 127"


def _pplx(name: str, family: dict[str, Any], sizes: dict[str, Any], *, also: str = _PPLX_ALSO) -> Repository:
    is_of_chunks = family is qwen3.CONTEXT
    modules = [
        *(("sentence_transformers.models.Transformer", ""), ("sentence_transformers.models.Pooling", "1_Pooling")),
        ("st_quantize.FlexibleQuantizer", ""),
    ]
    listed = [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (kind, path) in enumerate(modules)]
    pooling = {"word_embedding_dimension": sizes["hidden_size"], "pooling_mode_mean_tokens": True}
    files = {"modules.json": listed, "1_Pooling/config.json": pooling}
    config = {**family, **sizes, "layer_types": ["full_attention"] * sizes["num_hidden_layers"]}
    return plain(
        f"perplexity-ai/{name}",
        config,
        Served(pooling="mean", size=sizes["hidden_size"], length=32768),
        words=Words.QWEN,
        rows=(Source.PPLX, Source.PPLX_NOTES, *((Source.PPLX_CHUNKS,) if is_of_chunks else (Source.TEI, Source.MTEB))),
        model_max_length=131072,
        others={} if is_of_chunks else files,
        held_by=_READ,
        also=also,
    )


_CHUNKS = f"{_PPLX_ALSO}; `late_chunking` puts its token between chunks"
PPLX = tuple(
    _pplx(f"pplx-embed-{kind}-{size}", family, sizes, also=also)
    for kind, family, also in (("v1", qwen3.PPLX, _PPLX_ALSO), ("context-v1", qwen3.CONTEXT, _CHUNKS))
    for size, sizes in (("0.6b", _0_6B), ("4b", _4B))
)
JINA_V5 = tuple(
    plain(
        f"jinaai/jina-embeddings-v5-text-{size}",
        {**family, **sizes},
        Served(pooling="last", is_normalized=True, size=sizes["hidden_size"], length=family["max_position_embeddings"]),
        words=words,
        rows=rows,
        model_max_length=131072,
        others=jina_v5.FILES,
        held_by=_READ,
        also="an adapter for each `task`, by itself that for retrieval",
    )
    for size, family, sizes, words, rows in (
        ("small", jina_v5.SMALL, _0_6B, Words.QWEN, (Source.JINA_V5_NOTES, Source.VLLM_JINA, Source.MTEB)),
        ("nano", jina_v5.NANO, _NANO, Words.LLAMA3, (Source.JINA_V5, Source.VLLM_JINA, Source.MTEB)),
    )
)
REPOSITORIES: tuple[Repository, ...] = (VOYAGE, *PPLX, *JINA_V5)
