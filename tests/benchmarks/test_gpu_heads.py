"""The GPU benchmark's part for models with heads: what its random models are, and what its figures are held against.

That it runs is held by test_gpu_bench.py.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from benchmarks.gpu import heads
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import CpuClock
from benchmarks.gpu.model_folders import ModelFolder, write
from benchmarks.gpu.random_models import batch_of, bias_of_words
from benchmarks.gpu.rows import Figure, Key, Rows
from benchmarks.gpu.shapes import TINY_BERT
from benchmarks.gpu.targets import BF16, FP8, TARGETS, TRANSFORMERS
from engine.model.coverage import Use


def test_a_reranker_has_one_score(tmp_path: Path) -> None:
    folder = write(ModelFolder(TINY_BERT, Use.RERANK), tmp_path / "model", CpuClock().device)
    model, loading = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model(torch.arange(5, 9)[None]).logits.shape == (1, 1)


def test_a_text_has_few_words(tmp_path: Path) -> None:
    """As sparse models' texts have: what is copied out of the device is of their size."""
    folder = write(ModelFolder(TINY_BERT, Use.SPARSE), tmp_path / "model", CpuClock().device)
    model, loading = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    token_ids = torch.from_numpy(batch_of(TINY_BERT, [64] * 64).token_ids).long().view(64, 64)
    largest = model(token_ids).logits.amax(dim=1)
    assert 0 < (largest > 0).double().mean() < 0.02
    scores = torch.randn(128, 20_000, generator=torch.Generator().manual_seed(0)) * 3
    assert 0.005 < ((scores + bias_of_words(3.0, 128)).amax(dim=0) > 0).double().mean() < 0.02


def test_what_is_to_be_reached_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a target names. No model is loaded: their rates are made up."""
    bench = Bench(CpuClock(), Rows(tmp_path / "rows.csv", machine="m"), False, float("inf"))
    rates = {FP8: 9.0, BF16: 6.0, TRANSFORMERS: 4.0}

    def run(bench: Bench, case: heads.Case, way: str, *_: object) -> None:
        for seqlen in case.seqlens:
            key, rate = case.key(way, seqlen), rates[way] / (2 if case.folder.use is Use.SPARSE else 1)
            shares = heads._share_of_embeddings(bench, case, seqlen, rate) if case.folder.use is Use.SPARSE else ()
            bench.rows.add(key, [Figure("rate", rate, "tokens/s"), *shares])

    monkeypatch.setattr(heads, "_run", run)
    heads.run(bench)
    targets = [one for one in TARGETS if " of " in one.shape]
    assert len(targets) == 6
    for one in targets:
        key = Key(one.kind, one.subject, one.precision, one.shape)
        assert bench.rows.value(key, one.metric) == (0.5 if one.kind == heads.KIND else 1.5), key
