"""GritLM: Mistral and Mixtral that see both ways when they embed."""

from engine.model.json_files import Json
from engine.model.known_code.known_code import KnownCode

_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta"),
)


def _both_ways(_: Json, own: Json) -> Json:
    """GritLM.encode calls the code with is_causal=False, and its mask leaves out padding alone, not far tokens."""
    return {**own, "is_causal": False, "sliding_window": None}


GRITLM = KnownCode(
    source="ContextualAI/gritlm, scripts/modeling_mistral_gritlm.py and gritlm/gritlm.py",
    model_types=frozenset(("mistral",)),
    modules=frozenset(("modeling_gritlm7b",)),
    architecture="mistral",
    classes={"MistralForCausalLM": "MistralForCausalLM"},
    same=frozenset(_SIZES),
    without_effect=frozenset(("sliding_window",)),
    pools_text_alone=True,
    translate=_both_ways,
)
