"""The fused models of Llama's kin give the rows that transformers gives, sequence by sequence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from engine.fused.adapters import ADAPTERS
from engine.fused.model.spec import Spec
from engine.types import ModelError
from tests.engine.fused.model.models import COMPOSITIONS, load_fused
from tests.engine.tiny_models import arbitrary
from wire.dataclass_json import from_json, to_json

_SHARED: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,  # large enough for attention to have preferences
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
_SLIDING = {"sliding_window": 6, "layer_types": _TYPES}
_WIDE = {"head_dim": 16}  # more numbers than hidden_size has
_BIASED = {"attention_bias": True, "mlp_bias": True}
_MODERN = {"local_attention": 12, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3}
_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 3.0, 5.0, 9.0]}
_LONG_PHI3 = {**_LONG, "short_factor": [1.0, 2.0], "long_factor": [2.0, 5.0], "partial_rotary_factor": 0.5}


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


# name -> (model_type, what differs from _SHARED)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, bidirectional": ("llama", {"is_causal": False}),
    "llama, all biases": ("llama", _BIASED),
    "llama, biases of attention": ("llama", {"attention_bias": True}),
    "llama, biases of the MLP": ("llama", {"mlp_bias": True}),
    "llama, wide heads, gelu": ("llama", {**_WIDE, "hidden_act": "gelu"}),
    "llama, linear rope": ("llama", _rope(rope_type="linear", factor=3.0)),
    "llama, dynamic rope": ("llama", _rope(rope_type="dynamic", factor=3.0)),
    "llama, llama3 rope": ("llama", _rope(**_LLAMA3, original_max_position_embeddings=32)),
    "llama, yarn": ("llama", _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "mistral": ("mistral", {"sliding_window": 6}),
    "mistral without a window, bidirectional": ("mistral", {"sliding_window": None, "is_causal": False}),
    "ministral": ("ministral", _SLIDING),
    "qwen2": ("qwen2", {}),
    "qwen2, bidirectional": ("qwen2", {"is_causal": False}),
    "qwen2 with a window": ("qwen2", {**_SLIDING, "use_sliding_window": True}),
    "qwen3": ("qwen3", _WIDE),
    "qwen3 with a window and biases": ("qwen3", {**_SLIDING, "use_sliding_window": True, "attention_bias": True}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3 with a window": ("smollm3", {**_SLIDING, "use_sliding_window": True, "no_rope_layers": [0, 1, 1]}),
    "phi3": ("phi3", {"sliding_window": 6, **_rope(rope_type="default", partial_rotary_factor=0.5)}),
    "phi3, longrope": (
        "phi3",
        {"max_position_embeddings": 256, "original_max_position_embeddings": 64, **_rope(**_LONG_PHI3)},
    ),
    "eurobert": ("eurobert", {}),
    "gemma": ("gemma", _WIDE),
    "gemma with biases": ("gemma", {"attention_bias": True}),
    "gemma2": ("gemma2", {**_SLIDING, "query_pre_attn_scalar": 11, "attn_logit_softcapping": 2.0}),
    "gemma2 without softcap": ("gemma2", {**_SLIDING, "attn_logit_softcapping": None}),
    "gemma3_text": ("gemma3_text", {**_SLIDING, "query_pre_attn_scalar": 11}),
    "gemma3_text, bidirectional": (
        "gemma3_text",
        {**_SLIDING, **_WIDE, "query_pre_attn_scalar": 11, "use_bidirectional_attention": True},
    ),
    "gemma3_text, scaled rope": (
        "gemma3_text",
        {
            **_SLIDING,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "modernbert": ("modernbert", _MODERN),
    "modernbert with biases": ("modernbert", {**_MODERN, **_BIASED, "norm_bias": True}),
    "modernbert with norms' biases": ("modernbert", {**_MODERN, "norm_bias": True}),
}


def config_of(variant: str, **differences: Any) -> PretrainedConfig:
    model_type, of_variant = VARIANTS[variant]
    config: PretrainedConfig = AutoConfig.for_model(model_type, **(_SHARED | of_variant | differences))
    return config


def save(variant: str, folder: Path) -> Path:
    """A model with arbitrary weights; norms' weights and biases too, which transformers would make all alike."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModel.from_config(config_of(variant))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder)
    return folder


def reference_rows(model: PreTrainedModel, sequence: Sequence[int]) -> NDArray[np.float32]:
    """float32 [S, h]"""
    with torch.inference_mode():
        rows: torch.Tensor = model(input_ids=torch.tensor([list(sequence)]), use_cache=False).last_hidden_state
    return np.asarray(rows[0].numpy(), np.float32)


def assert_close(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Row by row, in parts of the largest number of the row."""
    assert actual.shape == expected.shape
    difference = np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert difference.max() <= 1e-5  # NaN is not


@pytest.mark.holds("Fused rows equal transformers' rows")
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    """The fused batch has padding full of NaN; transformers computes each sequence alone."""
    folder = save(variant, tmp_path / "model")
    # The implementation that knows softcap.
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    fused = load_fused(folder)
    for seqlens in COMPOSITIONS:
        sequences = arbitrary(seqlens)
        rows = [reference_rows(model, sequence) for sequence in sequences]
        assert_close(fused.token_rows(sequences), np.concatenate(rows))
        assert_close(fused.pooled(sequences, "last"), np.stack([of_one[-1] for of_one in rows]))
        assert_close(fused.pooled(sequences, "cls"), np.stack([of_one[0] for of_one in rows]))


@pytest.mark.parametrize(
    ("variant", "prefix"),
    [("llama", "model."), ("gemma3_text", "model."), ("modernbert", "model."), ("qwen3", "")],
)
def test_the_base_model_within_a_larger_one(variant: str, prefix: str, tmp_path: Path) -> None:
    folder = save(variant, tmp_path / "model")
    sequences = arbitrary((5, 9))
    rows = load_fused(folder).token_rows(sequences)
    tensors = load_file(folder / "model.safetensors")
    renamed = {prefix + name: tensor for name, tensor in tensors.items()}
    save_file({**renamed, "score.weight": torch.zeros(1, 32)}, folder / "model.safetensors")
    np.testing.assert_array_equal(load_fused(folder).token_rows(sequences), rows)


@pytest.mark.parametrize(
    ("variant", "missing"),
    [
        ("llama", "layers.1.mlp.up_proj.weight"),
        ("llama, all biases", "layers.1.self_attn.k_proj.bias"),
        ("qwen2", "layers.2.self_attn.q_proj.bias"),
        ("qwen3", "layers.0.self_attn.k_norm.weight"),
        ("gemma2", "layers.0.post_feedforward_layernorm.weight"),
        ("modernbert", "layers.1.attn_norm.weight"),
        ("modernbert", "final_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(variant: str, missing: str, tmp_path: Path) -> None:
    folder = save(variant, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors[missing]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=missing.replace(".", r"\.")):
        load_fused(folder)


def spec_of(config: PretrainedConfig) -> Spec:
    adapter = ADAPTERS.get(config.model_type)
    assert adapter is not None
    return adapter.spec(config)


@pytest.mark.holds("The fused engine refuses what it would compute differently")
@pytest.mark.parametrize(
    ("variant", "differences", "words"),
    [
        ("llama", {"hidden_act": "quick_gelu"}, "activation"),
        ("llama", _rope(rope_type="default", partial_rotary_factor=0.5), "partial_rotary_factor"),
        ("mistral", {"is_causal": False}, "sliding_window"),
        ("qwen2 with a window", {"is_causal": False}, "sliding_window"),
        ("smollm3 with a window", {"is_causal": False}, "sliding_window"),
        ("phi3", {"is_causal": False}, "sliding_window"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"is_causal": False}, "sliding_window"),
        ("gemma3_text", {"is_causal": False}, "is_causal"),
    ],
)
def test_what_it_would_get_wrong_is_refused(variant: str, differences: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        spec_of(config_of(variant, **differences))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("field", ["layer_types", "rope_parameters"])
def test_layers_of_another_kind_are_refused(field: str) -> None:
    config = config_of("gemma3_text")
    wrong = {"layer_types": ["chunked_attention"] * 3, "rope_parameters": {"sliding_attention": {}}}
    setattr(config, field, wrong[field])
    with pytest.raises(ModelError):
        spec_of(config)


@pytest.mark.parametrize("architecture", ["granite", "olmo2", "qwen3_moe", "gemma3", "gemma3n_text", "gpt2"])
def test_other_architectures_are_not_taken_for_these(architecture: str) -> None:
    assert architecture not in ADAPTERS


_QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_669}
REAL = {
    "Qwen3-Embedding-0.6B": ("qwen3", (1024, 28, 16, 3072), _QWEN3),
    "Qwen3-Embedding-8B": ("qwen3", (4096, 36, 32, 12_288), _QWEN3),
    "EmbeddingGemma-300m": (
        "gemma3_text",
        (768, 24, 3, 1152),
        {"num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "use_bidirectional_attention": True},
    ),
}


def real_spec(name: str) -> Spec:
    architecture, (hidden, layers, heads, intermediate), rest = REAL[name]
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return spec_of(AutoConfig.for_model(architecture, **sizes, intermediate_size=intermediate, **rest))


@pytest.mark.parametrize(
    ("name", "millions"), [("Qwen3-Embedding-0.6B", 440), ("Qwen3-Embedding-8B", 6946), ("EmbeddingGemma-300m", 101)]
)
def test_sizes_of_real_models(name: str, millions: int) -> None:
    spec = real_spec(name)
    assert round(spec.num_linear_parameters / 1e6) == millions
    assert from_json(Spec, json.loads(json.dumps(to_json(spec)))) == spec


def test_windows_and_angles_of_embeddinggemma() -> None:
    """Its window of 512 tokens reaches 256 to each side; every sixth layer sees all."""
    layers = real_spec("EmbeddingGemma-300m").layers
    assert [layer.window for layer in layers] == [257, 257, 257, 257, 257, None] * 4
    assert [layer.rope for layer in layers] == [1, 1, 1, 1, 1, 0] * 4
