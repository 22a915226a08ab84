"""NomicBERT: nomic-embed-text-v1 and v1.5, arctic-embed-m-long. transformers' `nomic_bert` has these layers; those of
nomic-embed-text-v2-moe are ours.

The code's configuration is GPT-2's with keys of its own, so much of it concerns GPT-2 alone.
"""

from dataclasses import replace

from engine.model.json_files import Json, needed_number, number_in
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_MULTIPLE = 256  # the code rounds the width of its MLP up

_OF_GPT2 = (
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx"),
    *("scale_attn_weights", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
    *("summary_use_proj", "n_ctx"),
)
_HOW_IT_RUNS = ("fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn", "use_xentropy", "last_layer_subset")
# Keys in files that transformers wrote anew, beside the code's own keys, with which they must agree.
_OF_TRANSFORMERS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "layer_norm_eps", "head_dim"),
    "rope_parameters",
)
_TRANSLATED = (
    *("pad_vocab_size_multiple", "rotary_scaling_factor", "max_trained_positions", "n_positions"),
    "max_position_embeddings",
)
_NAMES = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")


def _translate(raw: Json, config: Json) -> Json:
    if "rotary_emb_base" not in raw:  # versions of the code differ in its default
        raise ModelError("config.json has no 'rotary_emb_base'")
    size, heads = needed_number(config, "hidden_size"), needed_number(config, "num_attention_heads")
    if config.get("head_dim", size // heads) != size // heads:
        raise ModelError("'head_dim' in config.json is not n_embd / n_head, as in the model's own code")
    rope = {"rope_type": "default", "rope_theta": raw["rotary_emb_base"]}
    if {**rope, **config["rope_parameters"]} != rope:
        raise ModelError("'rope_parameters' in config.json says more than the model's own code, which only has a base")
    positions = needed_number(raw, "n_positions")
    if raw.get("rotary_scaling_factor"):  # longer texts would change the angles, and so the rows, of their batch
        positions = min(positions, number_in(raw, "max_trained_positions") or 2048)
    width = number_in(raw, "n_inner") or 8 * size // 3
    return {
        **config,
        "intermediate_size": _rounded_up(width, _MULTIPLE),
        "vocab_size": _rounded_up(needed_number(config, "vocab_size"), number_in(raw, "pad_vocab_size_multiple") or 1),
        "max_position_embeddings": positions,
        "rope_parameters": rope,
    }


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


NOMIC_BERT = KnownCode(
    source="nomic-ai/contrastors, src/contrastors/models/huggingface/modeling_hf_nomic_bert.py",
    model_types=frozenset(("nomic_bert",)),
    modules=frozenset(("modeling_hf_nomic_bert", "configuration_hf_nomic_bert")),
    repositories=frozenset(
        ("nomic-ai/nomic-bert-2048", "nomic-ai/nomic-embed-text-v1-unsupervised", "nomic-ai/nomic-embed-text-v1")
    ),
    architecture="nomic_bert",
    classes={
        **{f"NomicBert{name}": f"NomicBert{name}" for name in _NAMES},
        "NomicBertForPreTraining": "NomicBertForMaskedLM",
    },
    same=frozenset(("vocab_size", "type_vocab_size", *_OF_TRANSFORMERS)),
    renamed={
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "layer_norm_epsilon": "layer_norm_eps",
        "rotary_emb_base": "rope_parameters.rope_theta",
    },
    fixed={
        "activation_function": ("swiglu",),
        "causal": (False,),
        "mlp_fc1_bias": (False,),
        "mlp_fc2_bias": (False,),
        "hidden_act": ("silu",),
        "moe_every_n_layers": (0,),
        "num_experts": (0, 1),
        "parallel_block": (False,),
        "parallel_block_tied_norm": (False,),
        "prenorm": (False,),
        "qkv_proj_bias": (False,),
        "rotary_emb_fraction": (1.0,),
        "rotary_emb_interleaved": (False,),
        "rotary_emb_scale_base": (),
        "rotary_head_dim": (False,),
        "use_rms_norm": (False,),
    },
    without_effect=frozenset((*_OF_GPT2, *_HOW_IT_RUNS, "dense_seq_output", *_TRANSLATED)),
    signs=frozenset(("n_embd",)),
    defaults={
        **{"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257},
        **{"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "rotary_emb_fraction": 0.0},
        **{"qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True},
    },
    translate=_translate,
)


def _translate_moe(raw: Json, config: Json) -> Json:
    if needed_number(raw, "moe_top_k") > needed_number(raw, "num_experts"):
        raise ModelError("'moe_top_k' in config.json is more than 'num_experts'")
    width, translated = needed_number(raw, "n_inner"), _translate(raw, config)  # an expert's width is not rounded
    rope = translated.pop("rope_parameters")
    return {**translated, "intermediate_size": width, "rope_theta": float(rope["rope_theta"])}


_EXPERTS = ("num_experts", "moe_top_k", "moe_every_n_layers")
NOMIC_MOE = replace(
    NOMIC_BERT,
    source="nomic-ai/nomic-bert-2048, modeling_hf_nomic_bert.py",
    chosen_by=lambda config: bool(config.get("moe_every_n_layers")),
    architecture="nomic_bert_moe",
    is_ours=True,
    layers="nomic_bert",
    same=NOMIC_BERT.same | set(_EXPERTS),
    fixed={
        **{key: values for key, values in NOMIC_BERT.fixed.items() if key not in (*_EXPERTS, "hidden_act")},
        **{"activation_function": ("gelu",), "add_pooling_layer": (False,), "ffn_div": (1,)},
        **{"expert_choice_router": (False,), "moe_normalize_expert_weights": (False,), "num_shared_experts": (0,)},
        **{"mlp_fc1_bias": (True,), "mlp_fc2_bias": (True,), "qkv_proj_bias": (True,)},
    },
    without_effect=NOMIC_BERT.without_effect | {"moe_impl", "moe_resid_pdrop", "router_aux_loss_coef"},
    defaults={**NOMIC_BERT.defaults, "ffn_div": 1},
    translate=_translate_moe,
)
