"""The self-test at load finds planted faults that show only in long sequences, or only beside large numbers.

Each model's window or length is beyond the 40 tokens of the other sequences.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel

from engine.transformers import attention
from engine.transformers.forward import PackedForward
from engine.types import Batch
from tests.engine.tiny_models import HIDDEN_SIZE, save_whole
from tests.engine.transformers.loaded import load
from tests.tiers import full_but

LENGTHS = {"max_position_embeddings": 256}
WINDOWS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 44},
    "modernbert": {"local_attention": 88},
    "gemma3_text": {"sliding_window": 44},
    "gemma3_text, bidirectional": {"sliding_window": 176},  # halved when it is made, and when it is read,
}
FACTORS = HIDDEN_SIZE // 4 // 2
LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * FACTORS,
    "long_factor": [4.0] * FACTORS,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}


def is_packed(folder: Path, **options: Any) -> bool:
    """Whether the packed forward passed the self-test. Otherwise the library's own, padded, is taken."""
    loaded = load(folder, **options)
    loaded.close()
    return not loaded.info.is_padded


@pytest.mark.parametrize(
    ("family", "fault"),
    full_but(
        [*((family, -1) for family in WINDOWS), *(("mistral", fault) for fault in (None, 1, 1000))],
        itertools.product(WINDOWS, (None, -1, 1, 1000)),
    ),
)
def test_a_wrong_window(family: str, fault: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the packed attention: off by one either way, and ignored."""
    folder = save_whole(family, tmp_path / "model", AutoModel, **LENGTHS, **WINDOWS[family])
    visible = attention._visible

    def wrong(query: Tensor, key: Tensor, rule: attention._Rule) -> Tensor:
        is_windowed = rule.window < key.shape[2]
        return visible(
            query, key, dataclasses.replace(rule, window=rule.window + (fault or 0)) if is_windowed else rule
        )

    monkeypatch.setattr(attention, "_visible", wrong)
    assert is_packed(folder) == (fault is None)


@pytest.mark.parametrize("is_switched", [False, True])
def test_long_rope_with_the_other_frequencies(
    is_switched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switched one token too early: at the last length that they hold for."""
    folder = save_whole(
        "phi3",
        tmp_path / "model",
        AutoModel,
        max_position_embeddings=256,
        rope_parameters=LONG_ROPE,
        original_max_position_embeddings=64,
    )
    compute = PackedForward.__call__

    def switched(self: PackedForward, batch: Batch) -> Tensor:
        frequencies = getattr(self.model.rotary_emb, "original_inv_freq")  # noqa: B009 - modules have any
        factor = 4.0 if is_switched and batch.max_seqlen >= 64 else 1.0
        frequencies /= factor
        rows = compute(self, batch)
        frequencies *= factor
        return rows

    monkeypatch.setattr(PackedForward, "__call__", switched)
    assert is_packed(folder) == (not is_switched)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_bfloat16_beside_an_outlier_dimension(is_wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows differ by less than 5 % of the largest number, which is the outlier, and are those of other tokens."""
    folder = save_whole("bert", tmp_path / "model", AutoModel)
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.2.output.LayerNorm.bias"][3] = 500.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    compute = PackedForward.__call__

    def rolled(self: PackedForward, batch: Batch) -> Tensor:
        rows = compute(self, batch)
        return torch.roll(rows, 1, dims=0) if is_wrong else rows

    monkeypatch.setattr(PackedForward, "__call__", rolled)
    assert is_packed(folder, dtype="bfloat16") == (not is_wrong)
