"""Values in config.json of the wrong type or out of range, or sizes that don't fit each other: refused by key."""

from pathlib import Path
from typing import Any

import pytest

from engine.model.detection import library
from engine.model.detection.architecture import architecture_of
from engine.types import ModelError
from tests.engine.model.test_known_code import NOMIC
from tests.parity.repositories.own_code.jina_roberta import V3
from tests.parity.repositories.own_code.llama_bidirec import CONFIG as LLAMA
from tests.parity.repositories.own_code.llama_bidirec import SCORING

pytestmark = pytest.mark.holds("What a model is for")

BERT = {"model_type": "bert", "hidden_size": 12, "num_attention_heads": 3, "vocab_size": 30}
QWEN3 = {"model_type": "qwen3", "hidden_size": 12, "num_attention_heads": 5, "num_key_value_heads": 5}
NAN = float("nan")
NUMBERS = ("1e-5", True, NAN, -1.0, 0, [1])


def read(config: dict[str, Any], **others: Any) -> None:
    architecture_of(Path("/nowhere"), config | others)


@pytest.mark.parametrize(
    ("config", "key", "values"),
    [
        (BERT, "layer_norm_eps", NUMBERS),
        (BERT, "vocab_size", NUMBERS),
        (BERT, "hidden_size", NUMBERS),
        (BERT, "hidden_act", ("words", 1, ["gelu"])),
        (BERT, "pad_token_id", (30, -2, "0", 1.0, True)),
        (BERT, "num_attention_heads", (5,)),
        (BERT, "initializer_range", (NAN,)),
        (BERT, "id2label", ({"a": "b"}, ["a"])),
        (BERT, "intermediate_size", ([12],)),
        (QWEN3, "rope_theta", NUMBERS),
        (QWEN3, "rms_norm_eps", NUMBERS),
        (QWEN3, "rope_scaling", ("yarn", [1], {"rope_theta": 5.0}, {"original_max_position_embeddings": 8})),
        (QWEN3, "num_key_value_heads", (2, 3, 10)),
        (QWEN3, "head_dim", (7,)),
        ({"model_type": "gemma"}, "hidden_activation", ("gelu",)),  # the installed version reads hidden_act
        (V3, "lora_alpha", ("1", True, NAN)),
        (V3, "pad_token_id", (-1, V3["vocab_size"], "1")),
        (V3, "rotary_emb_base", NUMBERS),
        (V3, "num_attention_heads", (15, 24)),
        (NOMIC, "n_head", (NAN, 5, 256)),  # 256: three numbers in each, which are turned in pairs
        (NOMIC, "layer_norm_epsilon", NUMBERS),
        (LLAMA, "rope_scaling", ({"type": "llama3", "factor": 2.0, "high_freq_factor": 4.0}, {"factor": 1})),
        (SCORING, "rope_scaling", ({"type": "llama3", "factor": 2.0, "high_freq_factor": 4.0}, {"factor": 1})),
        (SCORING, "hidden_act", ("words",)),
    ],
)
def test_a_value_that_no_library_computes_as_it_stands_is_refused_by_its_key(
    config: dict[str, Any], key: str, values: tuple[Any, ...]
) -> None:
    read(config)
    for value in values:
        with pytest.raises(ModelError, match=f"{key}.* in config.json") as refused:
            read(config, **{key: value})
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "config",
    [
        BERT | {"layer_norm_eps": 1, "hidden_act": "gelu_new", "pad_token_id": -1},
        QWEN3 | {"rope_parameters": {"rope_theta": 5}, "rope_scaling": None, "pad_token_id": 10**6},
        {"model_type": "qwen2", "hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 2},
        {"model_type": "xlnet", "max_position_embeddings": -1},
        V3 | {"lora_alpha": 0},
    ],
)
def test_what_libraries_agree_on_is_served(config: dict[str, Any]) -> None:
    read(config)


def test_where_the_library_is_not_installed_heads_may_have_a_size_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start from a compiled model does without it."""
    for name in ("architectures", "keys_of", "has_head_size"):
        monkeypatch.setattr(library, name, lambda _: frozenset())
    read(QWEN3 | {"hidden_size": 10, "num_attention_heads": 4, "head_dim": 8})
