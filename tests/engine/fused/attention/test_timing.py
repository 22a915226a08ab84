"""The sample that ways to attend are tried on, and what is made of those that fail or are wrong."""

import contextlib
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.fused.attention.choice import Candidate
from engine.fused.attention.timing import GpuTiming, agree, sample_of, seconds_of
from engine.fused.model.ops import AttentionRule, Inputs
from engine.fused.model.reference import ReferenceOps
from engine.fused.model.spec import LayerSpec
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


@pytest.mark.parametrize("attend", [broken, wrong])
def test_what_fails_or_is_wrong_takes_for_ever(attend: object) -> None:
    timing = GpuTiming(spec_of(num_heads=1, num_kv_heads=1), ReferenceOps(), torch.bfloat16, CPU, is_recorded=True)
    assert timing(Candidate("other", attend), 512) == math.inf  # type: ignore[arg-type]


def test_a_recording_that_fails_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = ["own"]

    @contextlib.contextmanager
    def stream(name: str) -> Iterator[None]:
        before = streams[-1]
        streams.append(name)
        try:
            yield
        finally:
            streams.append(before)

    @contextlib.contextmanager
    def graph(_: object, *, capture_error_mode: str) -> Iterator[None]:
        streams.append("recording")  # and never back: so does torch where it can't end a recording
        yield
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    with pytest.raises(RuntimeError, match="during capture"):
        seconds_of(lambda: None, is_recorded=True)
    assert streams == ["own", "own", "recording", "own"]
