"""Qwen2 with code of its own: gte-Qwen2, stella_en_1.5B, inf-retriever; KaLM-embedding v2.5, QZhou-Embedding; and
Qwen2.5-Math's reward models."""

from dataclasses import replace

from engine.model.json_files import Json, object_in
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_SIZES = frozenset(
    (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"),
        *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling"),
        "rope_parameters",  # as transformers 5 saves the two
    )
)
_WINDOW = frozenset(("use_sliding_window", "sliding_window", "max_window_layers"))
_KALM_CLASS = "modeling.Qwen2Model"

REWARD = "Qwen2ForRewardModel"  # transformers lacks it; engine.tensorrt_llm.planning.plan


def _translate(raw: Json, config: Json) -> Json:
    if not isinstance(raw.get("is_causal"), bool):
        raise ModelError(
            "config.json has no 'is_causal', and versions of the model's own code differ without it; add "
            '"is_causal": false where tokens see the whole text (stella_en_1.5B_v5), true where they see earlier ones'
        )
    return config


# Qwen2Model of transformers 4.41 with is_causal, which leaves out the causal mask: transformers 5 has the same key.
QWEN2_EMBEDDING = KnownCode(
    source="modeling_qwen.py as vllm-project/vllm, vllm/model_executor/models/qwen2.py, describes it",
    model_types=frozenset(("qwen2",)),
    modules=frozenset(("modeling_qwen",)),
    architecture="qwen2",
    classes={name: name for name in ("Qwen2Model", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification")},
    same=_SIZES | {"is_causal"},
    fixed={"use_sliding_window": (False,)},
    without_effect=_WINDOW,
    translate=_translate,
)


def _is_kalm(config: Json) -> bool:
    """Whether code of this common name is that which was described: the class that sees both ways."""
    return config.get("is_causal") is False and object_in(config, "auto_map").get("AutoModel") == _KALM_CLASS


QWEN2_KALM = replace(
    QWEN2_EMBEDDING,
    source="config.json of KaLM-embedding-multilingual-mini-instruct-v2.5 as described in public, and arXiv 2506.20923",
    modules=frozenset(("modeling",)),
    chosen_by=_is_kalm,
    classes={"Qwen2Model": "Qwen2Model"},
    translate=None,
)
QWEN2_QZHOU = replace(
    QWEN2_EMBEDDING,
    source="Kingsoft-LLM/QZhou-Embedding on GitHub, README.md and embedder.py",
    modules=frozenset(("modeling_qzhou",)),
    classes={"QZhouModel": "Qwen2Model"},
    same=_SIZES,
    fixed={"use_sliding_window": (False,), "is_causal": (False,)},
    translate=lambda _, config: {**config, "is_causal": False},
)
QWEN2_REWARD = KnownCode(
    source="Qwen/Qwen2.5-Math-RM-72B, modeling_qwen2_rm.py",
    model_types=frozenset(("qwen2",)),
    modules=frozenset(("modeling_qwen2_rm", "configuration_qwen2_rm")),
    architecture="qwen2",
    classes={REWARD: REWARD},
    same=_SIZES | _WINDOW | {"head_dim", "layer_types", "is_causal"},
)
