"""all-MiniLM-L6-v2 compiled: the rows of sentence-transformers, whatever is in the batch, and in its SemEval ranks."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from engine.cpu.engine import CompiledEngine
from engine.selftest.fidelity import SENTENCES
from engine.selftest.warmup import warm_up
from engine.types import EngineError, OutputKind, Results
from tests.engine.cpu.engines import load, pooled
from tests.engine.engines import difference, results
from tests.engine.tiny_models import batch

TEXTS = (
    *SENTENCES,
    "",
    "?",
    "x" * 5000,
    "😀👩‍👩‍👧‍👦 emoji",
    "السلام عليكم",
    "[MASK] [SEP] [PAD] spelled out",
    "word " * 400,
)


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path, compiled_cache: Path) -> Iterator[CompiledEngine]:
    loaded = load(minilm_folder, cache_dir=str(compiled_cache))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def reference(minilm_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(minilm_folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def sequences(reference: SentenceTransformer) -> list[list[int]]:
    return [reference.preprocess([text])["input_ids"][0].tolist() for text in TEXTS]


def normalized(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


def test_rows_equal_sentence_transformers(
    minilm: CompiledEngine, reference: SentenceTransformer, sequences: list[list[int]]
) -> None:
    expected = reference.encode(list(TEXTS), batch_size=4, show_progress_bar=False)
    assert difference(normalized(pooled(minilm, sequences)), expected) <= 1e-5


def test_a_row_is_the_same_alone_and_in_any_batch(minilm: CompiledEngine, sequences: list[list[int]]) -> None:
    together = pooled(minilm, sequences)
    turned = pooled(minilm, sequences[::-1])[::-1]
    alone = np.concatenate([pooled(minilm, [sequence]) for sequence in sequences])  # on all cores
    assert difference(turned, together) <= 1e-5
    assert difference(alone, together) <= 1e-5


def test_the_busy_path_gives_a_lone_sequence_the_same_row(minilm: CompiledEngine, sequences: list[list[int]]) -> None:
    alone = pooled(minilm, [sequences[3]])
    minilm.submit(batch(sequences))
    ticket = minilm.submit(batch([sequences[3]]))  # other sequences are computed at the same time
    found = dict(minilm.collect() for _ in range(2))[ticket]
    assert isinstance(found, dict)
    assert difference(found[OutputKind.POOLED].values, alone) <= 1e-5


def test_batches_keep_apart(minilm: CompiledEngine, sequences: list[list[int]]) -> None:
    """Two at a time, ten in all, of different sizes."""
    expected = pooled(minilm, sequences)
    parts = [list(range(start, len(sequences), 10)) for start in range(10)]
    by_ticket: dict[int, list[int]] = {}
    collected: list[tuple[int, Results | EngineError]] = []
    for part in parts:
        if len(by_ticket) - len(collected) == minilm.limits.depth:
            collected.append(minilm.collect())
        by_ticket[minilm.submit(batch([sequences[index] for index in part]))] = part
    collected += [minilm.collect() for _ in range(len(parts) - len(collected))]
    for ticket, found in collected:
        assert isinstance(found, dict)
        assert difference(found[OutputKind.POOLED].values, expected[by_ticket[ticket]]) <= 1e-5


def test_it_warms_up(minilm: CompiledEngine) -> None:
    warm_up(minilm)


def test_token_rows_pool_to_the_pooled_row(minilm: CompiledEngine, sequences: list[list[int]]) -> None:
    one = batch(sequences[:5])
    tokens = results(minilm, type(one)("m", OutputKind.TOKENS, one.token_ids, one.cu_seqlens))
    assert set(tokens) == {OutputKind.TOKENS}
    rows, offsets = tokens[OutputKind.TOKENS].values, tokens[OutputKind.TOKENS].offsets
    assert offsets is not None
    means = np.stack([rows[start:end].mean(axis=0) for start, end in pairwise(offsets)])
    assert difference(means, pooled(minilm, sequences[:5])) <= 1e-6
