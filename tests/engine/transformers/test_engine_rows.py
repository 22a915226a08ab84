"""The transformers engine's rows against those of sentence-transformers, alone and in batches."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from engine.model import model_folder
from engine.rows.with_torch import pool
from engine.selftest.warmup import warm_up
from engine.transformers.engine import TransformersEngine
from engine.transformers.forward import PaddedForward
from engine.transformers.loading import load_model
from engine.types import (
    Batch,
    OutputKind,
)
from tests.engine.tiny_models import batch
from tests.engine.transformers.loaded import load, raw_rows, rows

TEXTS = (
    "",
    " ",
    "\n\t ",
    "a",
    "?",
    "The quick brown fox jumps over the lazy dog.",
    "ten thousand characters, " * 400,
    "x" * 10_000,
    "😀👩‍👩‍👧‍👦🇺🇳 emoji",
    "السلام عليكم ورحمة الله وبركاته",
    "敏捷的棕色狐狸跳过了懒狗",
    "control \x00\x01\x07\x1b[31m\x7f\u200b\ufeff characters",
    "[MASK] [SEP] [PAD] <pad> spelled out",
    "one two three four",  # these four are of equal length
    "five six seven eight",
    "red green blue black",
    "dog cat bird fish",
    "naïve café Ångström",
)


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path, no_network: None) -> Iterator[TransformersEngine]:
    loaded = load(minilm_folder)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def reference(minilm_folder: Path, no_network: None) -> SentenceTransformer:
    return SentenceTransformer(str(minilm_folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def expected(reference: SentenceTransformer) -> NDArray[np.float32]:
    """sentence-transformers' rows of TEXTS."""
    rows: NDArray[np.float32] = reference.encode(list(TEXTS), batch_size=4, show_progress_bar=False)
    return rows


@pytest.fixture(scope="module")
def sequences(reference: SentenceTransformer) -> list[list[int]]:
    """The ids that sentence-transformers makes of TEXTS."""
    return [reference.preprocess([text])["input_ids"][0].tolist() for text in TEXTS]


def test_minilm_is_packed_and_left_unnormalized(minilm: TransformersEngine, sequences: list[list[int]]) -> None:
    assert minilm.info.notes[0].startswith("packed")
    assert minilm.info.normalize
    assert np.abs(np.linalg.norm(raw_rows(minilm, sequences), axis=1) - 1).min() > 0.1


def test_the_texts_are_varied(sequences: list[list[int]]) -> None:
    seqlens = [len(sequence) for sequence in sequences]
    assert min(seqlens) == 2
    assert max(seqlens) == 256
    assert len(set(seqlens)) < len(seqlens)


def test_rows_equal_those_of_sentence_transformers(
    minilm: TransformersEngine, sequences: list[list[int]], expected: NDArray[np.float32]
) -> None:
    assert np.abs(rows(minilm, sequences) - expected).max() <= 1e-5
    alone = np.concatenate([rows(minilm, [sequence]) for sequence in sequences])
    assert np.abs(alone - expected).max() <= 1e-5


@pytest.mark.holds("A row is the same alone and in any batch")
def test_a_row_is_the_same_alone_and_in_any_batch(minilm: TransformersEngine, sequences: list[list[int]]) -> None:
    alone = np.concatenate([rows(minilm, [sequence]) for sequence in sequences])
    random = np.random.default_rng(0)
    for size in (2, 3, 5, 8, 13, len(sequences)):
        chosen = random.permutation(len(sequences))[:size]
        together = rows(minilm, [sequences[i] for i in chosen])
        assert np.abs(together - alone[chosen]).max() <= 1e-6


def test_a_batch_of_one_sequence_many_times(minilm: TransformersEngine, sequences: list[list[int]]) -> None:
    together = rows(minilm, [sequences[5]] * 33)
    assert np.abs(together - rows(minilm, [sequences[5]])).max() <= 1e-6


def test_arrays_that_may_not_be_written_are_taken(minilm: TransformersEngine, sequences: list[list[int]]) -> None:
    """What is received is a view of the received bytes."""
    made = batch(sequences[:3])
    received = Batch(
        "m",
        OutputKind.POOLED,
        np.frombuffer(made.token_ids.tobytes(), np.int32),
        np.frombuffer(made.cu_seqlens.tobytes(), np.int32),
    )
    minilm.submit(received)
    _, results = minilm.collect()
    assert isinstance(results, dict), results
    assert np.array_equal(results[OutputKind.POOLED].values, raw_rows(minilm, sequences[:3]))


def test_padded_mode_gives_the_same_rows(
    minilm_folder: Path, sequences: list[list[int]], expected: NDArray[np.float32]
) -> None:
    model = load_model(model_folder.read(minilm_folder), dtype=torch.float32)
    some = batch(sequences)
    pooled = pool(PaddedForward(model)(some), torch.tensor(some.cu_seqlens).long(), poolings=["mean"]).numpy()
    assert np.abs(pooled / np.linalg.norm(pooled, axis=1, keepdims=True) - expected).max() <= 1e-5


def test_the_warm_up_passes(minilm: TransformersEngine) -> None:
    assert warm_up(minilm).tokens_per_second > 0


@pytest.mark.parametrize("length", [1, 7, 5000])
def test_a_mean_is_exact_and_its_own(length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    own, other = (torch.randn(length, 8, generator=generator) + 1 for _ in range(2))
    exact = own.double().mean(dim=0).float()
    bounds = torch.tensor([0, length, 2 * length])
    assert torch.equal(pool(torch.cat([own, other * 1e6]), bounds, poolings=["mean"])[0], exact)
    assert torch.equal(pool(torch.cat([other * 1e6, own]), bounds, poolings=["mean"])[1], exact)


def test_first_and_last_tokens() -> None:
    token_rows = torch.arange(12.0).reshape(6, 2)
    bounds = torch.tensor([0, 1, 4, 6])
    assert pool(token_rows, bounds, poolings=["cls"]).tolist() == [[0, 1], [2, 3], [8, 9]]
    assert pool(token_rows, bounds, poolings=["last"]).tolist() == [[0, 1], [6, 7], [10, 11]]
