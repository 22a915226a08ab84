"""The parity test can fail: each feature that a model has shows in its rows.

For each, the model is run once more with that feature turned off, in a changed copy of its folder or in the batch,
and the rows must then be others than the library's of the unchanged model.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.model import coverage
from engine.model.coverage import Use
from engine.transformers import attention
from engine.types import OutputKind
from tests.engine.engines import load
from tests.parity.architectures import ARCHITECTURES, NUM_POSITIONS
from tests.parity.changes import Change, changed, with_a_key_for_each_query
from tests.parity.engines import compute
from tests.parity.folders import num_types, save
from tests.parity.references import Reference
from tests.parity.texts import Text, random_text, with_prompts
from tests.tiers import full_but

pytestmark = pytest.mark.holds("Every output equals the model's own library", "What a model is for")

LEAST_CHANGE = 1e-3
BOTH = OutputKind.POOLED | OutputKind.TOKENS
PACKED = [row.name for row in coverage.ARCHITECTURES if row.name in ARCHITECTURES and row.transformers == "packed"]
COMMON = ("BERT", "ModernBERT", "Qwen3")
SEQLENS = (5, 30, 44)  # longer than windows and than what RoPE is scaled from


def features() -> Iterator[tuple[str, str]]:
    """Of each architecture, those of its folder."""
    for name, tiny in ARCHITECTURES.items():
        for feature in tiny.own.features:
            yield name, feature


def texts(name: str) -> list[Text]:
    assert max(SEQLENS) < NUM_POSITIONS
    numbers = np.random.default_rng(7)
    return [random_text(numbers, seqlen, num_types=num_types(name)) for seqlen in SEQLENS]


def expected(name: str, folder: Path, batch: list[Text]) -> NDArray[np.float32]:
    """The library's pooled rows [B, D], each text alone."""
    reference = Reference(name, Use.EMBED, folder)
    return np.stack([reference(text)[OutputKind.POOLED] for text in batch])


def pooled(folder: Path, batch: list[Text]) -> NDArray[np.float32]:
    """Ours [B, D]."""
    engine = load("transformers", folder)
    rows = np.stack([outputs[OutputKind.POOLED] for outputs in compute(engine, batch, OutputKind.POOLED)])
    engine.close()
    return rows


def change_of_rows(name: str, tmp_path: Path, change: Change) -> float:
    """The largest, of what the engine makes of the changed folder against the library's of the other."""
    folder = save(name, Use.EMBED, tmp_path / "model")
    batch = texts(name)
    actual = pooled(changed(folder, tmp_path / "changed", change), batch)
    return float(np.abs(actual - expected(name, folder, batch)).max())


@pytest.mark.parametrize(("name", "feature"), full_but([each for each in features() if each[0] in COMMON], features()))
def test_a_feature_counts(name: str, feature: str, tmp_path: Path) -> None:
    assert change_of_rows(name, tmp_path, ARCHITECTURES[name].own.features[feature]) > LEAST_CHANGE


def test_what_turns_gqa_off_is_the_order_of_groups(tmp_path: Path) -> None:
    """With its keys and values written out once for each query head, a model's rows are as they were."""
    for name in ("Llama", "Phi3"):
        assert change_of_rows(name, tmp_path / name, with_a_key_for_each_query) < 1e-5


@pytest.mark.parametrize("name", full_but(COMMON, PACKED))
def test_the_direction_of_the_mask_counts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turned round after the self-test at load, which would notice."""
    folder = save(name, Use.EMBED, tmp_path / "model")
    batch = texts(name)
    engine = load("transformers", folder)
    rule = attention._Rule

    def turned_round(*, is_causal: bool, **others: Any) -> attention._Rule:
        return rule(is_causal=not is_causal, **others)

    monkeypatch.setattr(attention, "_Rule", turned_round)
    rows = np.stack([outputs[OutputKind.POOLED] for outputs in compute(engine, batch, OutputKind.POOLED)])
    engine.close()
    assert np.abs(rows - expected(name, folder, batch)).max() > LEAST_CHANGE


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if num_types(name) > 1])
def test_token_types_count(name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    batch = texts(name)
    assert any(1 in (text.types or ()) for text in batch)
    without = [Text(text.ids) for text in batch]
    assert np.abs(pooled(folder, without) - expected(name, folder, batch)).max() > LEAST_CHANGE


@pytest.mark.parametrize(
    "name", full_but(COMMON, [name for name, tiny in ARCHITECTURES.items() if tiny.own.pooling != "lasttoken"])
)
def test_leaving_prompts_out_counts(name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    batch = with_prompts(np.random.default_rng(7), texts(name))
    assert all(text.num_prompt for text in batch)
    without = [Text(text.ids, text.types) for text in batch]
    assert np.abs(pooled(folder, without) - expected(name, folder, batch)).max() > LEAST_CHANGE
