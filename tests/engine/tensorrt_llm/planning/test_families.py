"""Which architectures have a class, and what is said of the others."""

import pytest

from engine.tensorrt_llm.planning.families import FAMILIES, family_of
from engine.types import ModelError
from tests.engine import engines


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
