"""The engine around an executor, with an executor that is plain numpy: order, threads, the lone sequence, failures."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.cpu.engine import OpenVinoEngine
from engine.cpu.minibatch import ATTENTION_MASK, INPUT_IDS, MAX_PADDED_TOKENS, cut, padded
from engine.cpu.openvino import Executor
from engine.cpu.outputs import Makers, PaddedPooling, tokens
from engine.rows.with_numpy import Pooling, RowModules
from engine.types import (
    Batch,
    EngineClosed,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelInfo,
    OutputKind,
    Results,
    compute,
)
from tests.engine.tiny_models import batch
from tests.server_e2e.running import PATIENCE

POISON, HUGE = 666, 667
DIMENSIONS = 3
OUTPUTS = OutputKind.POOLED | OutputKind.TOKENS


@dataclass
class Plain:
    """A token's row is its id, its position and how many tokens its sequence has; padding is NaN."""

    num_streams: int = 2
    multiple_alone: int = 2
    calls: list[str] = field(default_factory=list)  # "stream" or "wide", in the order in which they began
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    gate: Callable[[], Any] = lambda: None  # called in each computation
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, kind: str, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        with self.lock:
            self.calls.append(kind)
            self.shapes.append(inputs[INPUT_IDS].shape)
        self.gate()
        return self.compute(inputs[INPUT_IDS], inputs[ATTENTION_MASK])

    def compute(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        if (ids == POISON).any():
            raise RuntimeError("poison\nin two lines")
        if (ids == HUGE).any():
            raise MemoryError
        position = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        rows = np.stack([ids, position, np.broadcast_to(mask.sum(1, keepdims=True), ids.shape)], axis=-1)
        return np.where(mask[..., None] == 1, rows, np.nan).astype(np.float32)

    def executor(self, *, has_wide: bool = True) -> Executor:
        names = frozenset((INPUT_IDS, ATTENTION_MASK))
        streams = tuple(lambda inputs: self.run("stream", inputs) for _ in range(self.num_streams))
        wide = (lambda inputs: self.run("wide", inputs)) if has_wide else None
        return Executor(names, streams, self.num_streams, wide, self.multiple_alone)


@contextmanager
def engine(
    plain: Plain,
    *,
    pooling: str = "mean",
    has_wide: bool = True,
    num_long_streams: int | None = None,
    least_wide: int | None = None,
) -> Iterator[OpenVinoEngine]:
    info = ModelInfo(
        name="m",
        engine="plain",
        reason="",
        outputs=OUTPUTS,
        dimensions=DIMENSIONS,
        max_seqlen=512,
        vocab_size=1000,
        pooling=pooling,
        normalize=False,
        dtype="float32",
        device="cpu",
        architecture="",
    )
    limits = EngineLimits(max_num_tokens=4096, max_num_seqs=64, max_seqlen=512, depth=2)
    makers: Makers = {OutputKind.POOLED: PaddedPooling(Pooling((pooling,), RowModules())), OutputKind.TOKENS: tokens}
    sizes = dict.fromkeys(OUTPUTS, DIMENSIONS)
    executor = replace(plain.executor(has_wide=has_wide), least_wide=least_wide, num_long_streams=num_long_streams)
    loaded = OpenVinoEngine(executor, makers, info=info, limits=limits, pad_id=1, sizes=sizes)
    yield loaded
    loaded.close()
    with pytest.raises(EngineClosed):
        drain(loaded)


def drain(loaded: OpenVinoEngine) -> None:
    while True:
        loaded.collect()


def computed(loaded: OpenVinoEngine, sequences: list[list[int]]) -> Results | EngineError:
    loaded.submit(batch(sequences))
    return loaded.collect()[1]


def of_lengths(*seqlens: int) -> list[list[int]]:
    """Sequence i holds 10 * i, 10 * i + 1, …"""
    return [[(10 * number + at) % 600 for at in range(seqlen)] for number, seqlen in enumerate(seqlens)]


def expected(sequences: list[list[int]], pooling: str) -> NDArray[np.float32]:
    rows = [np.array([(id, at, len(sequence)) for at, id in enumerate(sequence)], float) for sequence in sequences]
    pooled = {"cls": [row[0] for row in rows], "last": [row[-1] for row in rows], "mean": [row.mean(0) for row in rows]}
    return np.array(pooled[pooling], np.float32)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=40), st.sampled_from(["cls", "mean", "last"]), st.integers(1, 5)
)
def test_rows_come_back_in_the_order_of_their_batch(seqlens: list[int], pooling: str, num_streams: int) -> None:
    sequences = of_lengths(*seqlens)
    with engine(Plain(num_streams=num_streams), pooling=pooling) as loaded:
        one = batch(sequences)
        loaded.submit(Batch("m", OUTPUTS, one.token_ids, one.cu_seqlens))
        _, found = loaded.collect()
    assert isinstance(found, dict)
    np.testing.assert_allclose(found[OutputKind.POOLED].values, expected(sequences, pooling), rtol=1e-6)
    tokens = found[OutputKind.TOKENS]
    assert tokens.values[:, 0].tolist() == one.token_ids.tolist()
    assert tokens.offsets is not None
    assert tokens.offsets.tolist() == one.cu_seqlens.tolist()


@given(st.lists(st.integers(1, 700), min_size=1, max_size=60), st.integers(1, 8))
def test_mini_batches_hold_every_token_once_and_little_padding(seqlens: list[int], num_streams: int) -> None:
    one = batch(of_lengths(*seqlens))
    mini_batches = cut(one, num_streams=num_streams, max_seqlen=699)
    places = np.concatenate([mini_batch.index[mini_batch.is_token] for mini_batch in mini_batches])
    assert sorted(places.tolist()) == list(range(one.num_tokens))
    for mini_batch in mini_batches:
        assert mini_batch.index.size <= MAX_PADDED_TOKENS or len(mini_batch.numbers) == 1
        assert mini_batch.index.shape[1] % 8 == 0 or mini_batch.index.shape[1] >= 699, "the model takes no more"
        ids = padded(one, mini_batch, [INPUT_IDS], pad_id=999)[INPUT_IDS]
        assert (ids == 999).sum() == (~mini_batch.is_token).sum()
        assert ids.dtype == np.int64


def test_one_batch_is_spread_over_all_streams() -> None:
    barrier = threading.Barrier(2)  # broken unless two mini-batches are computed at the same time
    plain = Plain(gate=lambda: barrier.wait(PATIENCE))
    with engine(plain) as loaded:
        found = computed(loaded, of_lengths(200, 200))
    assert isinstance(found, dict), found
    assert plain.calls == ["stream", "stream"]


def test_streams_that_are_done_begin_with_the_next_batch() -> None:
    barrier = threading.Barrier(2)
    with engine(Plain(gate=lambda: barrier.wait(PATIENCE)), has_wide=False) as loaded:
        tickets = {loaded.submit(batch(of_lengths(3))), loaded.submit(batch(of_lengths(4)))}
        found = dict(loaded.collect() for _ in tickets)
    assert found.keys() == tickets
    assert not any(isinstance(results, EngineError) for results in found.values())


def test_a_lone_sequence_is_computed_on_all_cores() -> None:
    plain = Plain()
    with engine(plain) as loaded:
        for sequences in (of_lengths(7), of_lengths(7, 7), of_lengths(300)):
            compute(loaded, batch(sequences))
    assert plain.calls[0] == plain.calls[-1] == "wide"
    assert set(plain.calls[1:-1]) == {"stream"}


@pytest.mark.parametrize(
    ("multiple", "lengths"), [(2, [10, 64, 72]), (4, [12, 64, 72]), (8, [16, 64, 72])], ids=["2", "4", "8"]
)
def test_a_short_lone_sequence_has_little_padding_where_a_length_takes_little_memory(
    multiple: int, lengths: list[int]
) -> None:
    plain = Plain(multiple_alone=multiple)
    with engine(plain) as loaded:
        for seqlen in (9, 64, 65):
            compute(loaded, batch(of_lengths(seqlen)))
    assert plain.shapes == [(1, length) for length in lengths]


def test_a_long_lone_sequence_leaves_the_other_cores_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cpu.engine.MAX_WIDE_TOKENS", 200)
    plain = Plain()
    with engine(plain) as loaded:
        for seqlen in (200, 201):
            compute(loaded, batch(of_lengths(seqlen)))
    assert plain.calls == ["wide", "stream"]


def test_nothing_is_begun_beside_it() -> None:
    is_alone, has_next, is_beside = threading.Event(), threading.Event(), threading.Event()
    plain = Plain()

    def gate() -> None:
        if len(plain.calls) > 1:
            is_beside.set()
            return
        is_alone.set()
        assert has_next.wait(PATIENCE)
        assert not is_beside.wait(0.1)

    plain.gate = gate
    with engine(plain) as loaded, ThreadPoolExecutor(1) as pool:
        alone = pool.submit(loaded.compute_alone, batch(of_lengths(7)))
        assert is_alone.wait(PATIENCE)
        loaded.submit(batch(of_lengths(5, 200, 200)))
        has_next.set()
        _, found = loaded.collect()
        assert isinstance(alone.result(), dict)
    assert isinstance(found, dict)
    assert plain.calls[0] == "wide"
    assert "wide" not in plain.calls[1:]


def test_a_sequence_behind_others_is_not_lone() -> None:
    may_end = threading.Event()
    plain = Plain(gate=lambda: may_end.wait(PATIENCE))
    with engine(plain) as loaded:
        loaded.submit(batch(of_lengths(200, 200)))
        assert loaded.compute_alone(batch(of_lengths(7))) is None
        may_end.set()
        loaded.collect()
    assert plain.calls == ["stream"] * 2


def test_where_memory_is_short_one_stream_takes_all_long_sequences() -> None:
    at_once = threading.Semaphore(1)

    def gate() -> None:
        if plain.shapes[-1][1] > MAX_PADDED_TOKENS:
            assert at_once.acquire(blocking=False)
            has_short.wait(PATIENCE)
            at_once.release()
        else:
            has_short.set()

    has_short = threading.Event()
    plain = Plain(gate=gate)
    with engine(plain, num_long_streams=1) as loaded:
        found = computed(loaded, of_lengths(600, 600, 600, 5))
    assert isinstance(found, dict)
    assert sorted(shape[1] for shape in plain.shapes) == [8, 600, 600, 600]


def test_the_engine_holds_two_batches_and_no_more() -> None:
    may_end, is_in = threading.Event(), threading.Event()
    with engine(Plain(gate=lambda: may_end.wait(PATIENCE))) as loaded:
        loaded.submit(batch(of_lengths(5)))
        loaded.submit(batch(of_lengths(5)))

        def third() -> None:
            loaded.submit(batch(of_lengths(5)))
            is_in.set()

        thread = threading.Thread(target=third)
        thread.start()
        assert not is_in.wait(0.05)
        may_end.set()
        loaded.collect()
        assert is_in.wait(PATIENCE)
        thread.join()


@pytest.mark.parametrize(
    ("planted", "kind", "message"),
    [
        (POISON, EngineErrorKind.FAILED, "RuntimeError: poison in two lines"),
        (HUGE, EngineErrorKind.OUT_OF_MEMORY, "MemoryError:"),
    ],
)
def test_a_batch_that_fails_fails_alone(planted: int, kind: EngineErrorKind, message: str) -> None:
    sequences = [*of_lengths(300, 300, 300, 300), [planted] * 400]
    with engine(Plain()) as loaded:
        failed = computed(loaded, sequences)
        found = computed(loaded, of_lengths(5))
    assert isinstance(failed, EngineError)
    assert (failed.kind, str(failed)) == (kind, message)
    assert isinstance(found, dict)


def test_what_was_submitted_is_finished_before_the_end() -> None:
    plain = Plain()
    with engine(plain) as loaded:
        loaded.submit(batch(of_lengths(200, 200)))
        loaded.submit(batch(of_lengths(200, 200)))
        loaded.close()
        assert {loaded.collect()[0], loaded.collect()[0]} == {1, 2}
    assert len(plain.calls) == 4
