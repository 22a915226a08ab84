"""ai-sage's Giga-Embeddings: Qwen3 and DeepSeek-V3 that see both ways; and an older one with latent attention."""

from engine.model.json_files import Json
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_FILES = frozenset(("modeling_gigarembed", "configuration_gigarembed"))
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_bias"),
    *("rope_theta", "rope_scaling", "rope_parameters"),
)
_BOTH_WAYS = {"is_causal": (False,), "pooling": ("avg", "mean")}
_FULL = "full_attention"


def _both_ways(raw: Json, config: Json) -> Json:
    kinds = raw.get("layer_types", [_FULL])
    if not isinstance(kinds, list) or any(kind != _FULL for kind in kinds):
        raise ModelError(f"'layer_types' in config.json are not all {_FULL!r}, and Giga's code makes one mask for all")
    return {**config, "is_causal": False}


GIGA_QWEN3 = KnownCode(
    source="Giga-Embeddings-instruct-480M-0826, modeling_gigarembed.py as a public conversion of it describes it",
    model_types=frozenset(("qwen3_bidirec",)),
    modules=_FILES,
    signs=frozenset(("model_type",)),
    architecture="qwen3",
    classes={"Qwen3BidirectionalModel": "Qwen3Model"},
    same=frozenset(_SIZES),
    fixed={**_BOTH_WAYS, "use_sliding_window": (False,)},
    without_effect=frozenset(("layer_types", "sliding_window", "max_window_layers")),
    translate=_both_ways,
)
GIGA_EXPERTS = KnownCode(
    source="vllm-project/vllm, pull request 52948, which adds DeepseekV3BidirectionalModel, by the model's authors",
    model_types=frozenset(("deepseek_v3_bidirec",)),
    modules=_FILES,
    signs=frozenset(("model_type",)),
    architecture="deepseek_v3",
    classes={"DeepseekV3BidirectionalModel": "DeepseekV3Model"},
    same=frozenset(
        (
            *_SIZES,
            *("moe_intermediate_size", "n_shared_experts", "n_routed_experts", "num_experts_per_tok", "n_group"),
            *("topk_group", "norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace", "rope_interleave"),
            *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        )
    ),
    nulls=frozenset(("q_lora_rank",)),  # queries are not compressed
    fixed={**_BOTH_WAYS, "topk_method": ("noaux_tc",), "scoring_func": ("sigmoid",), "moe_layer_freq": (1,)},
    # the sum of two others, training, and layers that predict further tokens
    without_effect=frozenset(
        (
            *("qk_head_dim", "aux_loss_alpha", "seq_aux", "ep_size", "output_router_logits", "pretraining_tp"),
            *("num_nextn_predict_layers", "num_mtp_layers"),
        )
    ),
    translate=lambda _, config: {**config, "is_causal": False},
)
GIGA_LATENT = KnownCode(
    source="ai-sage/Giga-Embeddings-instruct, modeling_gigarembed.py",
    model_types=frozenset(("gigarembed",)),
    modules=_FILES,
    instead="ai-sage/Giga-Embeddings-instruct-480M-0826 and -3B-0826, which came after it, are served",
)
