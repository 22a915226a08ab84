"""Whole starts in FP8 of a model for each task: the gate compares what users get, and the cache keeps the head."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig, PretrainedConfig

from engine.fused import loading
from engine.fused.quantization import measures
from engine.fused.start import Phases
from engine.model.coverage import Use
from engine.selftest import sample_ids, selfcheck
from engine.types import OutputKind
from tests.engine.fused.loaded import fp8_options
from tests.engine.tiny_models import tame
from tests.parity import folders
from tests.parity.architectures import BGE_M3
from tests.tiers import full

COSINES = {"median", "p1", "minimum"}
SCORES = {"median_change", "largest_change"}
FIGURES = {
    OutputKind.POOLED: COSINES | {"overlap"},
    OutputKind.SPARSE: COSINES,
    OutputKind.MULTI_VECTOR: COSINES,
    OutputKind.TOKEN_LOGITS: SCORES | {"changed_winners"},
}
ONE_SCORE, LABELS = SCORES | {"rank_correlation"}, SCORES | {"changed_winners"}


@pytest.fixture
def _lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arbitrary weights never pass the gate."""
    limits = {name: -1.0 if name.startswith("MIN_") else 1e9 for name in vars(measures) if name[:4] in ("MIN_", "MAX_")}
    assert len(limits) == 7
    for name, limit in limits.items():
        monkeypatch.setattr(measures, name, limit)


@pytest.fixture
def _fit_for_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of models whose sizes are multiples of 16, and which have a pooling that the fused engine knows."""
    sizes = {"hidden_size": 64, "intermediate_size": 96}

    class Configs:
        @staticmethod
        def for_model(model_type: str, **settings: Any) -> PretrainedConfig:
            heads = {"head_dim": 16} if "head_dim" in settings else {}
            config: PretrainedConfig = AutoConfig.for_model(model_type, **(settings | sizes | heads))
            return config

    monkeypatch.setattr(folders, "AutoConfig", Configs)
    monkeypatch.setattr(folders, "HIDDEN_SIZE", 64)
    save_pooling = folders.save_pooling
    monkeypatch.setattr(folders, "save_pooling", lambda folder, _: save_pooling(folder, "cls"))


@pytest.mark.usefixtures("_fit_for_fp8", "_lenient")
@pytest.mark.holds("Only layers that passed the quality gate run in FP8", "A warm fused start imports no transformers")
@pytest.mark.parametrize(
    ("name", "use", "expected"),
    [
        ("BERT", Use.RERANK, {OutputKind.LOGITS: ONE_SCORE}),
        ("Qwen3", Use.GENERATIVE_RERANK, {OutputKind.LOGITS: ONE_SCORE}),
        (BGE_M3, Use.SPARSE, FIGURES),
        ("BERT", Use.SPARSE, FIGURES),
        *full(
            ("BERT", Use.CLASSIFY, {OutputKind.LOGITS: LABELS}),
            ("ModernBERT", Use.TOKEN_CLASSIFY, FIGURES),
            ("ModernBERT", Use.SPARSE, FIGURES),
            ("BERT", Use.LATE_INTERACTION, FIGURES),
            ("Llama", Use.RERANK, {OutputKind.LOGITS: ONE_SCORE}),
        ),
    ],
)
def test_each_output_is_compared_and_comes_from_the_cache_as_it_was(
    name: str, use: Use, expected: dict[OutputKind, set[str]], tmp_path: Path
) -> None:
    folder = tame(folders.save(name, use, tmp_path / "model"))
    options = fp8_options(folder, tmp_path / "cache")
    cold, warm = (loading.load(Phases(), name="m", reason="", options=options) for _ in range(2))
    assert cold.outcome is not None
    outputs = cold.engine.info.outputs & ~OutputKind.TOKENS
    assert cold.outcome.quantized, cold.outcome.note
    found: dict[str, set[str]] = {}
    for figure in cold.outcome.found.figures:
        found.setdefault(figure.output, set()).add(figure.name.removesuffix("_std"))
    assert found == {(kind.name or "").lower(): expected[kind] for kind in outputs}
    assert warm.outcome == cold.outcome
    assert any("quantized weights taken from" in note for note in warm.model.notes)
    sequences = sample_ids.arbitrary(cold.model.chosen.folder, (5, 17, 1, 30))
    rows, again = (selfcheck.results_of(loaded.engine, sequences, outputs) for loaded in (cold, warm))
    for kind in outputs:
        np.testing.assert_allclose(rows[kind].values, again[kind].values, rtol=1e-4, atol=1e-5)
    first, second = (loaded.model.weights for loaded in (cold, warm))
    assert first.tensors.keys() == second.tensors.keys()
    assert first.linears.keys() == second.linears.keys()
    if use is Use.SPARSE and "vocabulary.words.weight" in first.tensors:  # no second copy of a matrix that is tied
        for tensors in (first.tensors, second.tensors):
            assert tensors["vocabulary.words.weight"].data_ptr() == tensors["words"].data_ptr()
