"""all-MiniLM-L6-v2 by each engine: the rows of sentence-transformers, whatever else is in the batch or computed.

Rank correlation with graded pairs of sentences, as SemEval measures it: engines against sentence-transformers.
"""

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from benchmarks.measuring.graded_pairs import Pairs, correlation, graded_pairs, ranks
from engine.model import model_folder
from engine.selftest.fidelity import SENTENCES
from engine.selftest.warmup import warm_up
from engine.types import Batch, Engine, EngineError, OutputKind, Results
from tests.engine.engines import difference, load, results, rows
from tests.engine.tiny_models import batch
from tests.tiers import full
from tokenizer_pool.messages import TokenizerSpec
from tokenizer_pool.tokenizer import Tokenizer

TEXTS = (
    *SENTENCES[:8],
    "",
    "\n\t ",
    "?",
    "ten thousand characters, " * 400,
    "x" * 10_000,
    "😀👩‍👩‍👧‍👦🇺🇳 emoji",
    "السلام عليكم ورحمة الله وبركاته",
    "敏捷的棕色狐狸跳过了懒狗",
    "control \x00\x01\x07\x1b[31m\x7f\u200b\ufeff characters",
    "[MASK] [SEP] [PAD] <pad> spelled out",
    "one two three four",  # these two are of equal length
    "five six seven eight",
    "naïve café Ångström",
)


@pytest.fixture(scope="module", params=["transformers", "openvino", *full("fused")])
def minilm(request: pytest.FixtureRequest, minilm_folder: Path, compiled_cache: Path) -> Iterator[Engine]:
    loaded = load(request.param, minilm_folder, cache_dir=str(compiled_cache), num_threads=2)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def reference(minilm_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(minilm_folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def sequences(reference: SentenceTransformer) -> list[list[int]]:
    """The ids that sentence-transformers makes of TEXTS."""
    found = [reference.preprocess([text])["input_ids"][0].tolist() for text in TEXTS]
    lengths = {len(sequence) for sequence in found}
    assert (min(lengths), max(lengths)) == (2, 256)
    assert len(lengths) < len(found)
    return found


@pytest.fixture(scope="module")
def together(minilm: Engine, sequences: list[list[int]]) -> NDArray[np.float32]:
    """Rows of one batch."""
    return rows(minilm, batch(sequences))


def normalized(found: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows as users get them."""
    scaled: NDArray[np.float32] = found / np.linalg.norm(found, axis=1, keepdims=True)
    return scaled


def test_rows_equal_sentence_transformers(together: NDArray[np.float32], reference: SentenceTransformer) -> None:
    """They are handed out as they are, and scaled to length 1 later."""
    lengths = np.linalg.norm(together, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.1
    expected = reference.encode(list(TEXTS), batch_size=4, show_progress_bar=False)
    assert difference(together / lengths, expected) <= 1e-5


@pytest.mark.full
def test_rows_by_kernels_equal_sentence_transformers(minilm_folder: Path, reference: SentenceTransformer) -> None:
    """Few of them, as the kernels are interpreted here."""
    texts = [*SENTENCES[:3], "?"]
    loaded = load("fused", minilm_folder, num_threads=2)
    found = rows(loaded, batch([reference.preprocess([text])["input_ids"][0].tolist() for text in texts]))
    loaded.close()
    assert difference(normalized(found), reference.encode(texts, show_progress_bar=False)) <= 1e-5


def test_what_is_said_of_it(minilm: Engine) -> None:
    info = minilm.info
    assert (info.pooling, info.normalize, info.dimensions, info.dtype) == ("mean", True, 384, "float32")
    assert info.engine != "transformers" or info.notes[0].startswith("packed")
    assert warm_up(minilm).tokens_per_second > 0


@pytest.mark.holds("A row is the same alone and in any batch")
def test_a_row_is_the_same_alone_and_in_any_batch(
    minilm: Engine, sequences: list[list[int]], together: NDArray[np.float32]
) -> None:
    tolerance = 1e-6 if minilm.info.engine == "transformers" else 1e-5
    random = np.random.default_rng(0)
    drawn: list[list[int]] = [random.permutation(len(sequences))[:size].tolist() for size in (2, 5, 13)]
    for chosen in ([0], [9], *drawn, [5] * 33):
        found = rows(minilm, batch([sequences[number] for number in chosen]))
        assert np.abs(normalized(found) - normalized(together[chosen])).max() <= tolerance


def test_batches_keep_apart(minilm: Engine, sequences: list[list[int]], together: NDArray[np.float32]) -> None:
    """As many at a time as there may be, of different sizes; the last one is a lone sequence on the busy path."""
    parts = [*(list(range(start, len(sequences), 10)) for start in range(10)), [3]]
    by_ticket: dict[int, list[int]] = {}
    collected: list[tuple[int, Results | EngineError]] = []
    for part in parts:
        if len(by_ticket) - len(collected) == minilm.limits.depth:
            collected.append(minilm.collect())
        by_ticket[minilm.submit(batch([sequences[number] for number in part]))] = part
    collected += [minilm.collect() for _ in range(len(parts) - len(collected))]
    for ticket, found in collected:
        assert isinstance(found, dict)
        assert difference(found[OutputKind.POOLED].values, together[by_ticket[ticket]]) <= 1e-5


def test_token_rows_pool_to_the_pooled_row_of_received_arrays(minilm: Engine, sequences: list[list[int]]) -> None:
    """What is received is a view of the received bytes, and may not be written to."""
    one = batch(sequences[:5])
    received = dataclasses.replace(
        one,
        token_ids=np.frombuffer(one.token_ids.tobytes(), np.int32),
        cu_seqlens=np.frombuffer(one.cu_seqlens.tobytes(), np.int32),
    )
    pooled = rows(minilm, received)
    tokens = results(minilm, dataclasses.replace(received, outputs=OutputKind.TOKENS))[OutputKind.TOKENS]
    assert tokens.offsets is not None
    means = np.stack([tokens.values[start:end].mean(axis=0) for start, end in pairwise(tokens.offsets)])
    assert difference(means, pooled) <= 1e-6


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return graded_pairs()


@pytest.fixture(scope="module")
def expected(pairs: Pairs, minilm_folder: Path) -> float:
    model = SentenceTransformer(str(minilm_folder), device="cpu")
    return correlation(pairs.grades, model.encode(pairs.texts, show_progress_bar=False))


def rows_of(texts: list[str], engine: str, folder: Path, **options: Any) -> NDArray[np.float32]:
    read = model_folder.read(folder)
    tokenizer = Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=read.max_seqlen))
    tokens = tokenizer.encode(texts)
    loaded = load(engine, folder, max_num_tokens=65536, max_num_seqs=1024, num_threads=2, **options)
    try:
        return rows(loaded, Batch("m", OutputKind.POOLED, tokens.token_ids, tokens.offsets))
    finally:
        loaded.close()


def test_the_measure_itself() -> None:
    found = np.array([[1, 0], [1, 0], [1, 0], [1, 1], [1, 0], [0, 1]], np.float32)

    assert correlation([5, 3, 1], found) == pytest.approx(100)
    assert correlation([1, 3, 5], found) == pytest.approx(-100)
    assert ranks(np.array([7, 5, 7, 9])).tolist() == [1.5, 0, 1.5, 3]


@pytest.mark.full
@pytest.mark.holds("Engines rank texts as sentence-transformers does")
@pytest.mark.parametrize("engine", ["transformers", "openvino"])
def test_an_engine_ranks_as_sentence_transformers_does(
    engine: str, pairs: Pairs, expected: float, minilm_folder: Path
) -> None:
    reached = correlation(pairs.grades, rows_of(pairs.texts, engine, minilm_folder))

    assert expected > 80  # the grades mean something
    assert reached == pytest.approx(expected, abs=0.01)


@pytest.mark.full
def test_int8_ranks_nearly_as_well(pairs: Pairs, expected: float, minilm_folder: Path) -> None:
    found = rows_of(pairs.texts, "openvino", minilm_folder, quantization="int8")

    assert correlation(pairs.grades, found) == pytest.approx(expected, abs=2)
