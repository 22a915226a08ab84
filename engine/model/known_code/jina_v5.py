"""jina-embeddings-v5-text: Qwen3 (small) and EuroBERT (nano) with adapters in files of their own."""

from dataclasses import replace

from engine.model.json_files import Json
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta"),
)
_WITHOUT_EFFECT = frozenset(
    (
        *("task_names", "hidden_dropout", "pretraining_tp", "bos_token", "eos_token", "pad_token", "mask_token"),
        *("sliding_window", "max_window_layers", "layer_types"),  # none is switched on
    )
)
_DEFAULT_TASK = "retrieval"  # the code asks for a task; this is what its default prompt is for, and vLLM's default


def _translate(raw: Json, config: Json) -> Json:
    for key in _SIZES:
        if key not in raw:
            raise ModelError(f"config.json has no {key!r}")
    names = raw.get("task_names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ModelError("'task_names' in config.json is not a list of names")
    if _DEFAULT_TASK not in names or any("/" in name or name in (".", "..") for name in names):
        raise ModelError(f"'task_names' in config.json lacks {_DEFAULT_TASK!r}, or has a name that is no folder's")
    is_small = raw.get("is_decoder", True)
    return {
        **config,
        "head_dim": raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        "has_head_norms": is_small,
        "is_causal": is_small,
        "lora_adaptations": names,
        "default_adaptation": _DEFAULT_TASK,
    }


JINA_V5_SMALL = KnownCode(
    source="jinaai/jina-embeddings-v5-text-small, modeling_jina_embeddings_v5.py and custom_st.py",
    model_types=frozenset(("jina_embeddings_v5",)),
    modules=frozenset(("modeling_jina_embeddings_v5", "configuration_jina_embeddings_v5")),
    chosen_by=lambda config: config.get("is_decoder") is not False,
    sentence_module="custom_st.Transformer",
    signs=frozenset(("model_type",)),  # nobody else has it
    architecture="jina_v5",
    is_ours=True,
    layers="qwen3",
    classes={"JinaEmbeddingsV5Model": "JinaV5Model"},
    same=frozenset((*_SIZES, "head_dim")),
    fixed={
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "rope_scaling": (),
        "use_sliding_window": (False,),
        "is_decoder": (True,),
    },
    without_effect=_WITHOUT_EFFECT,
    pools_last=True,
    translate=_translate,
)
JINA_V5_NANO = replace(
    JINA_V5_SMALL,
    source="jinaai/jina-embeddings-v5-text-nano, modeling_jina_embeddings_v5.py, modeling_eurobert.py and custom_st.py",
    chosen_by=lambda config: config.get("is_decoder") is False,
    layers="eurobert",
    fixed={
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "rope_scaling": (),
    },
)
