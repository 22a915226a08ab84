"""The sample that ways to attend are tried on, and what is made of those that fail or are wrong."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from engine.fused import attention_timing
from engine.fused.attention import NEVER, TILES, Candidate
from engine.fused.attention_timing import GpuTiming, agree, sample_of
from engine.fused.model.blocks import Attend
from engine.fused.model.ops import AttentionRule, Inputs
from engine.fused.model.reference import ReferenceOps
from engine.fused.model.spec import LayerSpec, Spec
from engine.fused.runner.graphs import Graph
from tests.engine.fused.attention.cases import spec_of

CPU = torch.device("cpu")
SPEC = spec_of(num_heads=4, layers=(LayerSpec(window=50), LayerSpec()))


@pytest.mark.parametrize("seqlen", [128, 514, 8192, 30000])
def test_the_sample_is_a_batch_at_its_worst(seqlen: int) -> None:
    sample = sample_of(SPEC, seqlen, dtype=torch.bfloat16, device=CPU)
    lengths = sample.inputs.cu_seqlens.diff()
    assert lengths.max() == sample.inputs.max_seqlen == seqlen
    assert lengths.min() == 0
    assert sample.query.shape[1:] == (4, 32)
    assert sample.key.shape[1:] == sample.value.shape[1:] == (2, 32)
    assert int(sample.inputs.tiles.table[:, 1].sum()) == sample.num_tokens
    for rows in (sample.query, sample.key, sample.value):
        assert rows.isfinite().all(dim=(1, 2)).sum() == sample.num_tokens
        assert rows[sample.num_tokens :].isnan().all()


def test_rows_agree_or_not() -> None:
    sample = sample_of(SPEC, 128, dtype=torch.bfloat16, device=CPU)
    rule = AttentionRule(is_causal=False, scaling=SPEC.scaling)
    rows = ReferenceOps().attend(sample.query, sample.key, sample.value, sample.inputs.tiles, rule)
    assert agree(rows, rows * 1.01, sample)
    assert not agree(rows, rows.roll(1, dims=0), sample)
    assert not agree(rows.index_fill(0, torch.tensor([5]), torch.nan), rows, sample)


def broken(query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
    raise RuntimeError("no such plan")


def wrong(query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
    return torch.zeros_like(query)


class VirtualGpu:
    """Kernels that take a GPU no time; calls cost the host what `spend` says, by a clock that nothing else moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, recording_fails: bool = False) -> None:
        self.now = 0.0
        self.num_calls = Counter[str]()  # "called", "recorded", "replayed"
        self._recording_fails = recording_fails
        self._state = "called"
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(attention_timing, "recorded", self._recorded)
        monkeypatch.setattr(attention_timing, "_timed", self._timed)

    def cudnn(self, query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
        """Makes its plan anew in each call, as its cache is never filled."""
        self.num_calls[self._state] += 1
        if self._state != "replayed":
            self.now += 0.042
        return ReferenceOps().attend(query, key, value, inputs.tiles, rule)

    def _recorded(self, work: Callable[[], object]) -> Graph:
        with self._in("recorded"):
            work()
        if self._recording_fails:
            raise RuntimeError("operation failed due to a previous error during capture")

        def replay() -> None:
            with self._in("replayed"):
                work()

        return Graph(replay, 0)

    @contextlib.contextmanager
    def _in(self, state: str) -> Iterator[None]:
        self._state = state
        yield
        self._state = "called"

    def _timed(self, call: Callable[[], object]) -> float:
        began = self.now
        call()
        return self.now - began + 0.001


SMALL = spec_of(num_heads=1, num_kv_heads=1)


def timing_of(spec: Spec = SMALL) -> GpuTiming:
    return GpuTiming(spec, ReferenceOps(), torch.bfloat16, CPU)


def test_a_call_that_keeps_the_host_is_made_as_seldom_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = VirtualGpu(monkeypatch)
    timing, cudnn = timing_of(), Candidate("cuDNN", gpu.cudnn)
    costs = [timing(cudnn, length) for length in (512, 1024)]
    assert [cost.host for cost in costs] == pytest.approx([0.042, 0.042])
    assert costs[0].device == pytest.approx(0.001 / 4)  # the host's part is none of it
    assert gpu.num_calls["called"] == 3  # one a length to check its rows, and one for the clock
    assert gpu.num_calls["recorded"] == 2
    assert gpu.now < 0.25


def test_where_recording_fails_calls_are_timed_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = VirtualGpu(monkeypatch, recording_fails=True)
    timing = timing_of()
    assert timing(TILES, 512).device == pytest.approx(0.001 / 4)
    assert timing(Candidate("cuDNN", gpu.cudnn), 512).device > 0.01


@pytest.mark.parametrize("attend", [broken, wrong])
def test_what_fails_or_is_wrong_takes_for_ever(attend: Attend, monkeypatch: pytest.MonkeyPatch) -> None:
    VirtualGpu(monkeypatch)
    assert timing_of()(TILES, 512).device < math.inf
    assert timing_of()(Candidate("other", attend), 512) == NEVER
