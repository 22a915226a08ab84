"""The fused models give the rows that transformers gives, text by text, and refuse what they would get wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, MPNetConfig, MPNetModel, PretrainedConfig

from engine.fused.adapters import ADAPTERS
from engine.fused.model.linear import PlainLinear
from engine.fused.model.spec import Spec
from engine.types import ModelError
from tests.engine.engines import refusal
from tests.engine.fused.model.models import Held, assert_close, check, inputs_of, load_fused, save
from tests.engine.tiny_models import GQA, SHARED, Reference, arbitrary, batch
from tests.tiers import full_but

BERT_LIKE = [
    "bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "ernie", "electra", "electra, wide", "distilbert",
    "mpnet", "albert", "nomic_bert", "gte", "gte without types", "jina_embeddings_v3",
]  # fmt: skip
# what the table of tests/parity, whose rows are compared too, has not, or not pruned
NOT_IN_PARITY = ["bert", "electra", "electra, wide", "mpnet", "nomic_bert", "gte without types"]
CONVERTED = ["nomic_bert", "gte", "jina_embeddings_v3"]  # saved under their authors' names


_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
_SLIDING = {"sliding_window": 6, "layer_types": _TYPES}
_WIDE = {"head_dim": 16}  # more numbers than hidden_size has
_BIASED = {"attention_bias": True, "mlp_bias": True}
_GROWING = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
    "llama_4_scaling_beta": 2.0,
}
_MODERN = {"local_attention": 12, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3}


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


# name -> (model_type, what differs from SHARED and GQA)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, bidirectional": ("llama", {"is_causal": False}),
    "llama, all biases": ("llama", _BIASED),
    "llama, biases of attention": ("llama", {"attention_bias": True}),
    "llama, biases of the MLP": ("llama", {"mlp_bias": True}),
    "llama, wide heads, gelu": ("llama", {**_WIDE, "hidden_act": "gelu"}),
    "mistral": ("mistral", {"sliding_window": 6}),
    "mistral without a window, bidirectional": ("mistral", {"sliding_window": None, "is_causal": False}),
    "ministral": ("ministral", _SLIDING),
    "ministral3": ("ministral3", {"sliding_window": 6, "rope_parameters": _GROWING}),
    "ministral3, bidirectional": ("ministral3", {"is_causal": False, "rope_parameters": _GROWING}),
    "qwen2": ("qwen2", {}),
    "qwen2, bidirectional": ("qwen2", {"is_causal": False}),
    "qwen2 with a window": ("qwen2", {**_SLIDING, "use_sliding_window": True}),
    "qwen3": ("qwen3", _WIDE),
    "qwen3 with a window and biases": ("qwen3", {**_SLIDING, "use_sliding_window": True, "attention_bias": True}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3 with a window": ("smollm3", {**_SLIDING, "use_sliding_window": True, "no_rope_layers": [0, 1, 1]}),
    "phi3": ("phi3", {"sliding_window": 6, **_rope(rope_type="default", partial_rotary_factor=0.5)}),
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
    "modernbert": ("modernbert", _MODERN),
    "modernbert with biases": ("modernbert", {**_MODERN, **_BIASED, "norm_bias": True}),
    "modernbert with norms' biases": ("modernbert", {**_MODERN, "norm_bias": True}),
}


# whose rows tests/parity compares; pruned, these are as others here
IN_PARITY = {
    *("llama, bidirectional", "ministral", "ministral3, bidirectional", "qwen2", "qwen2, bidirectional", "qwen3"),
    *("eurobert", "gemma"),
}


def config_of(variant: str, **differences: Any) -> PretrainedConfig:
    model_type, of_variant = VARIANTS[variant]
    config: PretrainedConfig = AutoConfig.for_model(model_type, **(SHARED | GQA | of_variant | differences))
    return config


def needs(family: str) -> None:
    """Skip what only the newer of the supported versions of transformers know."""
    model_type, *_ = family.split(" ")
    if model_type.rstrip(",") not in CONFIG_MAPPING:
        pytest.skip(f"this transformers does not know {model_type}")


@pytest.mark.holds("Fused rows equal transformers' rows")
@pytest.mark.parametrize(
    "family", [*full_but(NOT_IN_PARITY, BERT_LIKE), *full_but(VARIANTS.keys() - IN_PARITY, VARIANTS)]
)
def test_rows_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    needs(family)
    folder = save(config_of(family) if family in VARIANTS else family, tmp_path / "model")
    check(load_fused(folder), folder)


@pytest.mark.holds("Fused rows equal transformers' rows")
@pytest.mark.parametrize(("family", "num_calls"), [("bert", 3), ("nomic_bert", 0)])
def test_where_the_product_can_the_activation_is_a_part_of_it(
    family: str, num_calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, of every layer but gated ones. Its GELU is the form with tanh."""
    gelu, calls = PlainLinear.gelu, []

    def counted(linear: PlainLinear, rows: Tensor) -> Tensor:
        calls.append(linear)
        return gelu(linear, rows)

    monkeypatch.setattr(PlainLinear, "can_gelu", True)
    monkeypatch.setattr(PlainLinear, "gelu", counted)
    folder = save(family, tmp_path / "model")
    fused, sequence = load_fused(folder), arbitrary((7,))
    rows = fused.token_rows(sequence)
    assert len(calls) == num_calls
    assert np.abs(rows - Reference(folder).token_rows(sequence[0])).max() <= 2e-3 * np.abs(rows).max()


@pytest.mark.parametrize("family", CONVERTED)
def test_transformers_own_names(family: str, tmp_path: Path) -> None:
    needs(family)
    folder = save(family, tmp_path / "model")
    checkpoint = Held(AutoModel.from_pretrained(folder).state_dict())
    assert "layers.0.self_attn.q_proj.weight" in checkpoint.names
    check(load_fused(folder, checkpoint), folder, [(5, 17, 1)])


def test_what_stands_in_padding_would_be_seen(tmp_path: Path) -> None:
    """The other tests rest on this: rows of padding are NaN, all through the model."""
    fused = load_fused(save("bert", tmp_path / "model"))
    rows = fused.forward(inputs_of(batch(arbitrary((5, 3)))), is_pruned=False)
    assert rows[:8].isfinite().all()
    assert rows[8:].isnan().all()
    assert len(rows) > 8


def test_a_token_that_is_padding_to_roberta(tmp_path: Path) -> None:
    """A text can spell it out; it has no position of its own, and is seen like any other."""
    folder = save("roberta", tmp_path / "model")
    sequence = [5, 1, 6, 7]
    model = AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([sequence]), attention_mask=torch.ones(1, 4))
    assert_close(load_fused(folder).token_rows([sequence]), output.last_hidden_state[0].numpy())


def test_mpnet_far_beyond_its_buckets(tmp_path: Path) -> None:
    """Distances of more than 128 share a bias, and those up to it have that of transformers' buckets."""
    config = MPNetConfig(hidden_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=9)
    encoder = MPNetModel(config).encoder
    derive = ADAPTERS["mpnet"].derive
    assert derive is not None
    (table,) = derive(config, {"relative_bias": encoder.relative_attention_bias.weight}, 0).values()
    expected: Tensor = encoder.compute_position_bias(torch.zeros(1, 300, 8))[0]  # type: ignore[no-untyped-call] # [N, 300, 300]
    distances = torch.arange(300) - torch.arange(300)[:, None]
    reach = table.shape[1] // 2
    assert torch.equal(table[:, distances.clamp(-reach, reach) + reach], expected)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("bert", {"is_decoder": True}),
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"hidden_act": "gelu_10"}),
        ("roberta", {"add_cross_attention": True, "is_decoder": True}),
        ("ernie", {"use_task_id": True}),
        ("albert", {"num_hidden_groups": 2}),
        ("albert", {"inner_group_num": 2}),
        ("distilbert", {"activation": "tanh"}),
        ("mpnet", {"relative_attention_num_buckets": 64}),
        ("nomic_bert", {"prenorm": True}),
        ("nomic_bert", {"n_layer": 24}),
        ("nomic_bert", {"rotary_emb_base": 10_000}),
        ("gte", {"logn_attention_scale": True}),
        ("gte", {"position_embedding_type": "absolute"}),
        ("jina_embeddings_v3", {"position_embedding_type": "alibi"}),
    ],
)
def test_what_would_be_wrong_is_refused(family: str, change: dict[str, object]) -> None:
    needs(family)
    adapter = ADAPTERS.get(family)
    assert adapter is not None
    assert adapter.spec(AutoConfig.for_model(family)).architecture == family
    assert refusal(adapter.spec, AutoConfig.for_model(family, **change)).startswith("the fused engine ")


def test_the_packaged_minilm(minilm_folder: Path) -> None:
    check(load_fused(minilm_folder), minilm_folder, [(7, 40, 1, 12)])


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
    folder = save(config_of(variant), tmp_path / "model")
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
        ("ministral3", {"is_causal": False}, "sliding_window"),
        ("ministral3", _rope(rope_type="default"), "llama_4_scaling_beta"),
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
    assert words in refusal(spec_of, config_of(variant, **differences))


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
