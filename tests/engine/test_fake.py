"""The fake engine's rows say exactly which ids they were made from."""

import numpy as np
import pytest

from engine import fake
from engine.types import Batch, EngineError, EngineErrorKind, ModelError, OutputKind, Results


def load(**options: object) -> fake.FakeEngine:
    defaults = {
        "dimensions": 16,
        "max_seqlen": 64,
        "vocab_size": 1000,
        "max_num_tokens": 256,
        "max_num_seqs": 8,
        "cost_ms": 0,
        "tokens_per_second": 0,
        "faults": [],
    }
    return fake.load(name="m", reason="asked", options={**defaults, **options})


def batch_of(*sequences: list[int]) -> Batch:
    token_ids = np.array([token for sequence in sequences for token in sequence], np.int32)
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    return Batch("m", OutputKind.POOLED, token_ids, cu_seqlens)


def compute(engine: fake.FakeEngine, batch: Batch) -> Results | EngineError:
    ticket = engine.submit(batch)
    collected, results = engine.collect()
    assert collected == ticket
    return results


def test_each_row_is_that_of_its_own_ids() -> None:
    engine = load()
    sequences = [[1, 2, 3], [4], [1, 2, 3], [3, 2, 1], [900]]

    results = compute(engine, batch_of(*sequences))

    assert isinstance(results, dict)
    rows = results[OutputKind.POOLED].values
    fixed = fake.table(16)
    expected = np.stack([fake.row(fixed, np.array(sequence, np.int32).tobytes()) for sequence in sequences])
    assert rows.dtype == np.float32
    assert np.array_equal(rows, expected)
    assert np.array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[3])
    assert np.array_equal(rows[:, :4], rows[:, :4].astype(np.uint16))  # whole numbers, exact


@pytest.mark.parametrize(
    ("fault", "kind"), [("fail@token:4", EngineErrorKind.FAILED), ("oom@tokens:2", EngineErrorKind.OUT_OF_MEMORY)]
)
def test_planted_errors(fault: str, kind: EngineErrorKind) -> None:
    engine = load(faults=[fault])

    struck = compute(engine, batch_of([1, 2], [4]))
    spared = compute(engine, batch_of([1, 2]))

    assert isinstance(struck, EngineError)
    assert struck.kind is kind
    assert isinstance(spared, dict)


def test_a_planted_nan_spoils_a_row() -> None:
    results = compute(load(faults=["nan@batch:1"]), batch_of([1], [2]))

    assert isinstance(results, dict)
    assert np.isnan(results[OutputKind.POOLED].values).sum() == 1


@pytest.mark.parametrize("text", ["", "exit", "exit@", "exit@batch", "exit@batch:x", "melt@batch:1", "exit@moon:1"])
def test_a_fault_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="--fake-fault"):
        load(faults=[text])
