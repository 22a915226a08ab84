"""Architectures whose rows would be wrong in a batch, and heads that do not run alone: refused with one line."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModel, AutoModelForSequenceClassification

from tests.engine import engines
from tests.engine.engines import load
from tests.parity.architectures import HIDDEN_SIZE, Own, Tiny
from tests.parity.folders import save_transformer

pytestmark = pytest.mark.holds("What a model is for")

LEAKING = (
    Tiny("convbert", Own({"embedding_size": HIDDEN_SIZE})),
    Tiny("fnet"),
    Tiny("nystromformer"),
)
LONGFORMER = Tiny("longformer", Own({"attention_window": 8, "pad_token_id": 1}))


def refusal(engine: str, tiny: Tiny, library_class: Any, tmp_path: Path) -> str:
    save_transformer(tiny, library_class, tmp_path / "model", num_labels=1)
    return engines.refusal(lambda: load(engine, tmp_path / "model"))


@pytest.mark.parametrize("tiny", [pytest.param(tiny, id=tiny.model_type) for tiny in LEAKING])
def test_an_architecture_that_mixes_padding_into_rows_runs_one_by_one(tiny: Tiny, tmp_path: Path) -> None:
    save_transformer(tiny, AutoModel, tmp_path / "model", num_labels=1)
    loaded = load("transformers", tmp_path / "model")
    loaded.close()
    assert loaded.info.notes[0].startswith("one by one")


@pytest.mark.full
@pytest.mark.parametrize("tiny", [pytest.param(tiny, id=tiny.model_type) for tiny in LEAKING])
def test_the_same_compiled(tiny: Tiny, tmp_path: Path) -> None:
    assert "rows are not the original's" in refusal("openvino", tiny, AutoModel, tmp_path)


def test_a_head_that_asks_for_more_than_rows(tmp_path: Path) -> None:
    found = refusal("transformers", LONGFORMER, AutoModelForSequenceClassification, tmp_path)
    assert "the head of LongformerForSequenceClassification can't be run on its own: AttributeError" in found
