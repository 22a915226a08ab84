"""Tiny twins of architectures: every window, chunk and block of attention is 16 tokens, so that short texts show them.

Real ones are of up to 8,192 tokens, which no self-test at a start can afford.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import AutoConfig

from tests.parity.architectures import ARCHITECTURES, HIDDEN_SIZE, SHARED, VOCAB_SIZE, Own, Tiny

SIZE = 16
NUM_POSITIONS = 320
UNK, MASK = 5, 4
# Tokens of texts: one, around each multiple of a window, and more than a byte counts.
_SEQLENS = (1, 100, 33, 17, 16, 64, 2, 65, 15, 48, 5, 260)
_WINDOW = re.compile(r"(window|window_size|chunk_size|block_size|local_attention|floor_scale)$")
_GQA = {"num_key_value_heads": 2, "head_dim": 10}
_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
_MARKERS = {"cls_token_id": 2, "sep_token_id": 3}
_OFFSET = {"pad_token_id": 1}
_WINDOWED = {**_GQA, **_KINDS}
_EXPERTS = {**_GQA, "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 20}
_GPT = {"n_embd": HIDDEN_SIZE, "n_head": 4, "n_layer": 2, "n_positions": NUM_POSITIONS}
_LLAMA4 = {**_GQA, "intermediate_size_mlp": 52, "no_rope_layers": [1, 0], "num_local_experts": 2}
_BIDIRECTIONAL = {"is_causal": False}
_LATENT = {  # whose queries are not compressed, as Giga's
    **{"num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 16, "v_head_dim": 14},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "num_mtp_layers": 0},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    **{"moe_intermediate_size": 20, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0},
}
_TEXT = {
    **SHARED,
    **_GQA,
    **_BIDIRECTIONAL,
    **{"model_type": "ministral3", "max_position_embeddings": NUM_POSITIONS},
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": NUM_POSITIONS / SIZE},
        **{"original_max_position_embeddings": SIZE, "llama_4_scaling_beta": 0.5},
    },
}
_VISION = {
    "hidden_size": 20,
    "intermediate_size": 30,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
}
_FFN = {"ffn_dim": 52, "ffn_hidden_size": 52, "word_embed_proj_dim": HIDDEN_SIZE}

# Architectures that engine.model.coverage does not name, and bidirectional forms of those that it does.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 4": ("llama4_text", _LLAMA4),
    "Llama 4 without scales": ("llama4_text", {**_LLAMA4, "attn_temperature_tuning": False}),
    "Mistral, bidirectional": ("mistral", {**_GQA, **_BIDIRECTIONAL}),
    "Qwen3, bidirectional": ("qwen3", {**_WINDOWED, **_BIDIRECTIONAL}),
    "Cohere": ("cohere", _GQA),
    "Cohere 2": ("cohere2", _WINDOWED),
    "OLMo 2": ("olmo2", _GQA),
    "OLMo 3": ("olmo3", _WINDOWED),
    "EXAONE 4": ("exaone4", _WINDOWED),
    "VaultGemma": ("vaultgemma", {**_WINDOWED, "query_pre_attn_scalar": 8}),
    "ModernBERT decoder": ("modernbert-decoder", {**_KINDS, **_MARKERS}),
    "Granite": ("granite", _GQA),
    "Granite with windows": ("granite_swa", _WINDOWED),
    "GLM 4": ("glm4", _GQA),
    "Helium": ("helium", _GQA),
    "Starcoder 2": ("starcoder2", {"num_key_value_heads": 2}),
    "Mixtral": ("mixtral", _EXPERTS),
    "Mistral 3, its text, bidirectional": ("mistral3", {"text_config": _TEXT, "vision_config": _VISION}),
    "Qwen3 MoE": ("qwen3_moe", _EXPERTS),
    "DeepSeek V3, bidirectional": ("deepseek_v3", {**_LATENT, **_BIDIRECTIONAL}),
    "GPT-NeoX": ("gpt_neox", {}),
    "GPT-Neo": ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}),
    "BLOOM": ("bloom", {"n_head": 4, "n_layer": 2}),
    "OPT": ("opt", _FFN),
    "CTRL": ("ctrl", {**_GPT, "dff": 52}),
    "ESM": ("esm", {**_OFFSET, "position_embedding_type": "absolute"}),
    "ESM, rotary": ("esm", {**_OFFSET, "position_embedding_type": "rotary"}),
    "Longformer": ("longformer", {**_OFFSET, "attention_window": SIZE}),
    "DeBERTa": (
        "deberta",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": SIZE},
    ),
    "RoFormer": ("roformer", {"embedding_size": HIDDEN_SIZE}),
    "RemBERT": ("rembert", {"input_embedding_size": HIDDEN_SIZE}),
    "Megatron-BERT": ("megatron-bert", {}),
    "XLM-RoBERTa XL": ("xlm-roberta-xl", _OFFSET),
    "RoBERTa, pre-layernorm": ("roberta-prelayernorm", _OFFSET),
    "Recurrent Gemma": (
        "recurrent_gemma",
        {"num_hidden_layers": 3, "num_key_value_heads": 2, "lru_width": HIDDEN_SIZE},
    ),
    "Mamba": ("mamba", {}),
}
# Their layers mix what pads a batch into its rows.
LEAKING: dict[str, tuple[str, dict[str, Any]]] = {
    "ConvBERT": ("convbert", {"embedding_size": HIDDEN_SIZE}),
    "FNet": ("fnet", {}),
    "Nyströmformer": ("nystromformer", {}),
    "YOSO": ("yoso", {}),
}


def twin(name: str) -> Tiny:
    """Of a row of coverage, or of an architecture above."""
    if name in ARCHITECTURES:
        tiny = ARCHITECTURES[name]
        return Tiny(tiny.model_type, Own(_shrunk(tiny.model_type, tiny.own.settings), pooling="mean"))
    model_type, own = {**OTHERS, **LEAKING}[name]
    shared = {} if "text_config" in own else SHARED
    return Tiny(model_type, Own(_shrunk(model_type, shared | own), pooling="mean"))


def texts(longest: int) -> list[list[int]]:
    """Arbitrary ones between neighbours of masks, padding and markers alone; none is longer."""
    numbers = np.random.default_rng(3)
    plain = [numbers.integers(7, VOCAB_SIZE, seqlen).tolist() for seqlen in _SEQLENS]
    hostile = [[MASK] * 30, [0] * 20 + [9], [1] * 9 + [9], [0, 1, 2, 3, MASK] * 6, [9, 0, 1, MASK, 9]]
    places = numbers.permutation(len(plain) + len(hostile))
    return [[*plain, *hostile][place][:longest] for place in places]


def _shrunk(model_type: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    positions = {"max_position_embeddings", "n_positions"} & settings.keys()
    longer = {**settings, **dict.fromkeys(positions, NUM_POSITIONS)}
    known = AutoConfig.for_model(model_type, **longer).to_dict()
    windows = {key for key, value in known.items() if _WINDOW.search(key) and _is_window(key, value)}
    switches = {"use_sliding_window": True} if "use_sliding_window" in known else {}
    return {**longer, **dict.fromkeys(windows, SIZE), **switches}


def _is_window(key: str, value: object) -> bool:
    """Configurations say None where a model has no window."""
    return key == "sliding_window" if value is None else isinstance(value, int) and value > 0
