"""The gate on a reranker of real weights: the one real model's, with a score that was fitted on its rows.

The score tells a text beside itself from one beside another text, and so, less well, what is about a query from what
is not.
One layer is spoilt for FP8: numbers before its `down` are so large that nothing is left for the others of a row, and
`down` takes them back.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.measuring.graded_pairs import ranks
from engine.fused import loading
from engine.fused.engine import FusedEngine
from engine.fused.loading import Loaded
from engine.fused.quantization import gate_texts
from engine.fused.start import Phases
from engine.selftest.comparison import batch_of
from engine.types import OutputKind, compute
from tests.engine.fused.loaded import options

pytestmark = pytest.mark.full

_MAX_SEQLEN = 32
_RIDGE = 30.0  # holds the fit to what most pairs have in common
_SCALE = 3.0  # of the scores that pairs were fitted to, around the usual one
_USUAL = -4.0  # most documents have little to do with the query
_SPOILT = 3


@pytest.fixture(scope="module")
def reranker(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored") / "reranker"
    model = AutoModelForSequenceClassification.from_pretrained(minilm_folder, num_labels=1).eval()
    pooler = model.bert.pooler.dense
    texts = [text for text in gate_texts.texts() if 4 <= len(text.split()) <= 25]
    pairs = [*zip(texts, texts, strict=True), *zip(texts, np.roll(texts, 17).tolist(), strict=True)]
    with torch.inference_mode():
        pooler.weight.copy_(torch.eye(len(pooler.weight)))
        pooler.bias.zero_()
        pooled = torch.cat([pooled_of(model, minilm_folder, pairs[at : at + 32]) for at in range(0, len(pairs), 32)])
        wanted = torch.tensor([_SCALE] * len(texts) + [-_SCALE] * len(texts))
        centred = pooled - pooled.mean(dim=0)
        weight = torch.linalg.solve(centred.T @ centred + _RIDGE * torch.eye(pooled.shape[1]), centred.T @ wanted)
        model.classifier.weight.copy_(weight[None])
        model.classifier.bias.copy_(_USUAL - pooled.mean(dim=0) @ weight)
        spoilt = model.bert.encoder.layer[_SPOILT]
        spoilt.intermediate.dense.bias[0] = 1e5
        spoilt.output.dense.weight[:, 0] = 0
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm_folder / name, folder)
    return folder


def pooled_of(model: Any, folder: Path, pairs: list[tuple[str, str]]) -> torch.Tensor:
    inputs = AutoTokenizer.from_pretrained(folder)(
        pairs, padding=True, truncation=True, max_length=_MAX_SEQLEN, return_tensors="pt"
    )
    rows: torch.Tensor = model.bert(**inputs).pooler_output
    return rows


def start(folder: Path, quantization: str) -> Loaded:
    asked = options(folder, quantization=quantization, max_seqlen=_MAX_SEQLEN, num_threads=2)
    return loading.load(Phases(), name="m", reason="", options=asked)


def scores(engine: FusedEngine, pairs: Sequence[tuple[str, str]], folder: Path) -> NDArray[np.float64]:
    """By the library's tokenizer, one pair at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for pair in pairs:
        inputs = tokenizer(
            *pair, truncation=True, max_length=_MAX_SEQLEN, return_tensors="np", return_token_type_ids=True
        )
        batch = batch_of([inputs["input_ids"][0].astype(np.int32)], OutputKind.LOGITS, model="m")
        batch = replace(batch, token_type_ids=inputs["token_type_ids"][0].astype(np.int32))
        results = compute(engine, batch)
        assert isinstance(results, dict), results
        found.append(results[OutputKind.LOGITS].values[0, 0])
    return np.array(found)


def sigmoid(raw: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-raw)))


def test_what_is_served_changes_no_score_and_no_order_by_more_than_the_limits(reranker: Path) -> None:
    plain, served = start(reranker, "none"), start(reranker, "fp8")
    outcome = served.outcome
    assert outcome is not None
    assert outcome.passed, outcome.note
    assert f"layers.{_SPOILT}.down" in outcome.reverted
    assert not outcome.found_of_all.passes
    pairs = gate_texts.pairs()[:100]
    before, after = (scores(loaded.engine, pairs, reranker) for loaded in (plain, served))
    assert before[:10].mean() > before[30:].mean() + 0.3  # documents about the query have larger ones
    changes = np.abs(sigmoid(after) - sigmoid(before))
    limits = {figure.name: figure.limit for figure in outcome.found.figures}
    assert 0 < np.median(changes) <= limits["median_change"]
    assert changes.max() <= limits["largest_change"]
    correlation = np.corrcoef(ranks(before), ranks(after))[0, 1]
    assert correlation >= limits["rank_correlation"]
    figures = {figure.name: figure.value for figure in outcome.found.figures}
    assert figures["rank_correlation"] == pytest.approx(correlation, abs=1e-3)
