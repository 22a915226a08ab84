"""NomicBERT: config.json names code of its own, which is never run, and has its words."""

from typing import Any

from tests.parity.repositories.configs import published
from tests.parity.repositories.facts import Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.models.bert import QUERY, UNCASED
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words


def _code(repository: str, **classes: str) -> dict[str, Any]:
    """auto_map: purpose -> file and class."""
    return {"auto_map": {purpose: f"{repository}--{name}" for purpose, name in classes.items()}}


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
_NOMIC_PREFIXES = ("query: search_query: ", "document: search_document: ")

REPOSITORIES: tuple[Repository, ...] = tuple(
    embedding(
        name,
        _NOMIC,
        Words.UNCASED,
        pooling,
        length=length,
        model_max_length=8192,
        is_normalized=is_normalized,
        rows=rows,
        ids=UNCASED,
        card=card,
        library=_NOMIC_LIBRARY,
    )
    for name, pooling, is_normalized, length, rows, card in (
        (
            "nomic-ai/nomic-embed-text-v1",
            "mean",
            True,
            8192,
            (Source.CARD, Source.VLLM_NOMIC, Source.FASTEMBED),
            _NOMIC_PREFIXES,
        ),
        (
            "nomic-ai/nomic-embed-text-v1.5",
            "mean",
            False,
            8192,
            (Source.CARD, Source.VLLM_NOMIC, Source.FASTEMBED),
            _NOMIC_PREFIXES,
        ),
        (
            "Snowflake/snowflake-arctic-embed-m-long",
            "cls",
            True,
            2048,
            (Source.VLLM_ARCTIC, Source.FASTEMBED_RS, Source.MTEB),
            (QUERY,),
        ),
    )
)
