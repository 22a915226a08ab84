"""Which architectures have a class, which class computes a model, and what is said to it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine.tensorrt_llm.planning.families import FAMILIES, family_of
from engine.tensorrt_llm.planning.plan import ours
from engine.types import ModelError, OutputKind
from tests.engine import engines
from tests.engine.tensorrt_llm.header_models import HIDDEN, write_model

SCORE = {"score.weight": ("BF16", (3, HIDDEN))}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_family_has_a_class_of_its_own(model_type: str, tmp_path: Path) -> None:
    hidden_act = "gelu" if FAMILIES[model_type].is_encoder else "silu"
    model_class = ours(write_model(tmp_path, model_type=model_type, hidden_act=hidden_act, sliding_window=None))

    assert model_class.family is FAMILIES[model_type]
    assert model_class.model_kwargs["architectures"] == [FAMILIES[model_type].architecture]
    assert (model_class.output, model_class.num_outputs) == (OutputKind.POOLED, HIDDEN)
    assert not model_class.takes_token_types


def test_mistrals_window_is_taken_away(tmp_path: Path) -> None:
    """Its layers ask for one where every token sees all, too; texts are no longer than it, or it is refused."""
    folder = dataclasses.replace(write_model(tmp_path, model_type="mistral", sliding_window=64), max_seqlen=64)

    assert ours(folder).model_kwargs["sliding_window"] is None
    assert "sliding_window" not in ours(write_model(tmp_path / "other")).model_kwargs


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "Embedline's class on Qwen3Model: the row of the last pooling, each token sees those before it"),
        (
            {"model_type": "llama", "is_causal": False},
            "Embedline's class on LlamaModel: the row of the last pooling, each token sees all",
        ),
    ],
)
def test_the_note_says_what_is_computed(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert ours(write_model(tmp_path, **config)).note == words


def test_which_architectures_have_a_class() -> None:
    encoders = {name for name, family in FAMILIES.items() if family.is_encoder}
    assert encoders == {"roberta", "xlm-roberta"}
    assert set(FAMILIES) - encoders == {"llama", "mistral", "qwen2", "qwen3"}
    assert all(family_of(name).model_type == name for name in FAMILIES)
    assert len({family.architecture for family in FAMILIES.values()}) == len(FAMILIES)


@pytest.mark.parametrize(
    ("model_type", "instead"),
    [
        ("bert", "--engine fused, in the cuda image, serves it"),
        ("modernbert", "--engine fused, in the cuda image, serves it"),
        ("gemma3_text", "--engine fused, in the cuda image, serves it"),
        ("deberta-v2", "--engine transformers, in the cuda image, serves it"),
        ("unheard-of", "--engine transformers, in the cuda image, may serve it"),
    ],
)
def test_others_are_told_who_serves_them(model_type: str, instead: str) -> None:
    with pytest.raises(ModelError) as refused:
        family_of(model_type)
    assert str(refused.value).startswith(f"the tensorrt-llm engine has no class for the architecture {model_type!r}")
    assert str(refused.value).endswith(instead)


def test_a_strange_name_is_cut() -> None:
    assert len(engines.refusal(lambda: family_of("x\n" * 1000))) < 300
