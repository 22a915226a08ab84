"""Marks the tokens of queries for engines that look these up. Knows nothing of texts."""

from dataclasses import replace

import numpy as np

from engine.types import QUERY_TOKEN
from tokenizer_pool.token_ids import TokenizedTexts


def as_queries(tokens: TokenizedTexts, *, num_queries: int) -> TokenizedTexts:
    """The first `num_queries` texts marked."""
    types = tokens.token_type_ids
    types = np.zeros(len(tokens.token_ids), np.int32) if types is None else types.copy()
    types[: tokens.offsets[num_queries]] |= QUERY_TOKEN
    return replace(tokens, token_type_ids=types)
