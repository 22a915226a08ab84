"""GritLM/GritLM-7B, when it embeds (ContextualAI/gritlm: gritlm/gritlm.py, GritLM.encode and pooling;
scripts/modeling_mistral_gritlm.py, MistralModel.forward with is_causal=False)."""

from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.types import ModelError
from tests.engine.published import decoder
from tests.engine.published.agreement import SEQLENS, check
from tests.engine.published.folders import Weights, arbitrary, save, sequences
from tests.engine.published.reading import OPENVINO, TRANSFORMERS
from tests.tiers import full_but

CONFIG: dict[str, Any] = {
    "_name_or_path": "GritLM/GritLM-7B",
    "architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoModel": "modeling_gritlm7b.MistralModel",
        "AutoModelForCausalLM": "modeling_gritlm7b.MistralForCausalLM",
        "AutoModelForSequenceClassification": "modeling_gritlm7b.MistralForSequenceClassification",
    },
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 32,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "label2id": {"LABEL_0": 0},
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4,  # 4096 there; the mask of is_causal=False has none
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.37.0.dev0",
    "use_cache": True,
    "vocab_size": 120,
}


def tiny(folder: Path, **changes: Any) -> tuple[Path, Weights]:
    weights = arbitrary({**decoder.shapes(CONFIG, prefix="model."), "lm_head.weight": (120, 32)})
    return save(folder, CONFIG | changes, weights), weights


@pytest.mark.parametrize("engine", full_but((TRANSFORMERS,), (TRANSFORMERS, OPENVINO)))
def test_all_tokens_see_each_other(engine: str, tmp_path: Path) -> None:
    folder, weights = tiny(tmp_path / "model")
    texts = sequences(120, SEQLENS)
    check(engine, folder, texts, decoder.means(weights, CONFIG, texts, prefix="model."))


def test_the_mean_leaves_out_the_instruction(tmp_path: Path) -> None:
    folder, weights = tiny(tmp_path / "model")
    texts = sequences(120, (9, 20))
    check(TRANSFORMERS, folder, texts, decoder.means(weights, CONFIG, texts, prefix="model.", first=3), prompt=3)
    found = model_folder.read(folder)
    assert (found.poolings, found.normalize, found.include_prompt) == (("mean",), True, False)
    chosen = model_folder.read(folder, pooling="last-token")
    assert (chosen.poolings, chosen.normalize, chosen.include_prompt) == (("last",), True, False)


def test_a_key_that_nobody_read_is_refused(tmp_path: Path) -> None:
    folder, _ = tiny(tmp_path / "model", attention_window=3)
    with pytest.raises(ModelError, match="attention_window"):
        model_folder.read(folder)
