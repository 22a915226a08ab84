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
from tests.parity.architectures import ARCHITECTURES
from tests.parity.changes import Change, changed, with_a_key_for_each_query
from tests.parity.engines import compute
from tests.parity.folders import num_types, save
from tests.parity.fuzzing import texts
from tests.parity.references import Reference
from tests.parity.texts import Text, with_prompts
from tests.tiers import full_but

pytestmark = pytest.mark.holds("Every output equals the model's own library", "What a model is for")

LEAST_CHANGE = 1e-3
PACKED = [row.name for row in coverage.ARCHITECTURES if row.name in ARCHITECTURES and row.transformers == "packed"]
COMMON = ("BERT", "ModernBERT", "Qwen3")


def features() -> Iterator[tuple[str, str]]:
    """Of each architecture, those of its folder."""
    for name, tiny in ARCHITECTURES.items():
        for feature in tiny.own.features:
            yield name, feature


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


MARKED = [
    *(("types", name) for name in ARCHITECTURES if num_types(name) > 1),
    *(("prompts", name) for name, tiny in ARCHITECTURES.items() if tiny.own.pooling != "lasttoken"),
]


@pytest.mark.parametrize(("mark", "name"), full_but([each for each in MARKED if each[1] in COMMON], MARKED))
def test_what_tokens_are_marked_with_counts(mark: str, name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    batch = texts(name) if mark == "types" else with_prompts(np.random.default_rng(7), texts(name))
    marked = [1 in (text.types or ()) if mark == "types" else text.num_prompt for text in batch]
    assert any(marked) if mark == "types" else all(marked)
    without = [Text(text.ids, None if mark == "types" else text.types) for text in batch]
    assert np.abs(pooled(folder, without) - expected(name, folder, batch)).max() > LEAST_CHANGE
