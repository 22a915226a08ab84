"""Which architectures the fused engine knows. A new one is a file beside this one and its table here."""

from engine.fused.adapters import albert, bert, distilbert, gemma, llama, modernbert, mpnet, rotary_bert
from engine.fused.adapters.recipe import Adapter

_TABLES = (
    bert.ADAPTERS,
    distilbert.ADAPTERS,
    mpnet.ADAPTERS,
    albert.ADAPTERS,
    rotary_bert.ADAPTERS,
    llama.ADAPTERS,
    gemma.ADAPTERS,
    modernbert.ADAPTERS,
)


def find(architecture: str) -> Adapter | None:
    """By model_type of config.json; None where another engine must run it."""
    return next((table[architecture] for table in _TABLES if architecture in table), None)
