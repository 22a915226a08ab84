"""The adapters of all architectures.

A new architecture needs a file beside this one, and its table here.
"""

from engine.fused.adapters import bert, distilbert, gemma, llama, modernbert, mpnet, rotary_bert
from engine.fused.adapters.recipe import Adapter

_TABLES = (
    bert.ADAPTERS,
    distilbert.ADAPTERS,
    mpnet.ADAPTERS,
    rotary_bert.ADAPTERS,
    llama.ADAPTERS,
    gemma.ADAPTERS,
    modernbert.ADAPTERS,
)


def find(architecture: str) -> Adapter | None:
    """The adapter of a model_type; None if the fused engine does not know it."""
    return next((table[architecture] for table in _TABLES if architecture in table), None)
