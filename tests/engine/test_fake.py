"""The fake engine's rows say exactly which ids they were made from."""

import numpy as np
import pytest

from engine import fake
from engine.types import Batch, EngineError, EngineErrorKind, ModelError, OutputKind, Results
from tests.engine.engines import fake_options


def load(**options: object) -> fake.FakeEngine:
    return fake.load(name="m", reason="asked", options=fake_options(**options))


def batch_of(*sequences: list[int], outputs: OutputKind = OutputKind.POOLED) -> Batch:
    token_ids = np.array([token for sequence in sequences for token in sequence], np.int32)
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    return Batch("m", outputs, token_ids, cu_seqlens)


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


@pytest.mark.parametrize("outputs", [OutputKind.TOKENS, OutputKind.POOLED | OutputKind.TOKENS], ids=str)
def test_each_row_of_a_token_is_that_of_its_place_in_its_own_ids(outputs: OutputKind) -> None:
    engine = load()
    sequences = [[1, 2, 3], [4], [1, 2, 3], [900, 900]]

    results = compute(engine, batch_of(*sequences, outputs=outputs))

    assert isinstance(results, dict)
    assert set(results) == set(outputs)
    assert outputs in engine.info.outputs
    rows = results[OutputKind.TOKENS]
    fixed, ids = fake.table(16), [np.array(sequence, np.int32).tobytes() for sequence in sequences]
    assert rows.values.dtype == np.float32
    assert rows.offsets is not None
    assert rows.offsets.tolist() == [0, 3, 4, 7, 9]
    assert np.array_equal(rows.values, np.concatenate([fake.token_rows(fixed, each) for each in ids]))
    assert np.array_equal(rows.values[:3], rows.values[4:7])
    assert len(np.unique(rows.values[[0, 1, 2, 3, 7, 8]], axis=0)) == 6  # equal ids at other places differ
    assert np.array_equal(rows.values[:, :4], rows.values[:, :4].astype(np.uint16))  # whole numbers, exact
    assert np.array_equal(rows.values[[0, 3]], [fake.row(fixed, each) for each in ids[:2]])
    if OutputKind.POOLED in outputs:
        assert np.array_equal(results[OutputKind.POOLED].values, [fake.row(fixed, each) for each in ids])


@pytest.mark.parametrize(
    ("fault", "kind"), [("fail@token:4", EngineErrorKind.FAILED), ("oom@tokens:2", EngineErrorKind.OUT_OF_MEMORY)]
)
def test_planted_errors(fault: str, kind: EngineErrorKind) -> None:
    engine = load(fake_fault=[fault])

    struck = compute(engine, batch_of([1, 2], [4]))
    spared = compute(engine, batch_of([1, 2]))

    assert isinstance(struck, EngineError)
    assert struck.kind is kind
    assert isinstance(spared, dict)


def test_a_planted_nan_spoils_a_row() -> None:
    results = compute(load(fake_fault=["nan@batch:1"]), batch_of([1], [2]))

    assert isinstance(results, dict)
    assert np.isnan(results[OutputKind.POOLED].values).sum() == 1


def test_a_fault_from_a_batch_on_and_on_one_device() -> None:
    sick, well = load(fake_fault=["wrong@after:1/cpu"]), load(fake_fault=["wrong@after:1/b"])
    for engine, sign in ((sick, -1), (well, 1)):
        first, second = (compute(engine, batch_of([1, 2])) for _ in range(2))
        assert isinstance(first, dict)
        assert isinstance(second, dict)
        assert np.array_equal(second[OutputKind.POOLED].values, sign * first[OutputKind.POOLED].values)


@pytest.mark.parametrize("text", ["", "exit", "exit@", "exit@batch", "exit@batch:x", "melt@batch:1", "exit@moon:1"])
def test_a_fault_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="--fake-fault"):
        load(fake_fault=[text])


@pytest.mark.parametrize(("asked", "limit"), [(256, 256), (8, 64), (None, 16_384)])
def test_a_batch_has_room_for_the_longest_sequence_and_a_limit_of_its_own(asked: int | None, limit: int) -> None:
    engine = load(max_num_tokens=asked)

    assert engine.limits.max_num_tokens == engine.limits.target_num_tokens == limit
