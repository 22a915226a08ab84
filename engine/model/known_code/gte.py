"""Alibaba's `new` architecture (gte-multilingual-base and -reranker, gte-base and -large-en-v1.5, stella_en_400M_v5)
and Snowflake's copy of it (arctic-embed-m-v2.0). transformers' `gte` has these layers.
"""

from dataclasses import replace

from engine.model.json_files import Json, needed_number, object_in
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_OTHERS = ("hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps")
_NAMES = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
_NTK = frozenset(("type", "rope_type", "factor", "mixed_b"))


def _translate(raw: Json, config: Json) -> Json:
    """NTKScalingRotaryEmbedding multiplies the base, and divides each frequency, whatever the length of the text.

    A division of each is what transformers calls linear.
    """
    theta, scaling = raw["rope_theta"], object_in(raw, "rope_scaling")
    if not isinstance(theta, int | float):
        raise ModelError("'rope_theta' in config.json is not a number")
    if not scaling:
        return {**config, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    factor = scaling.get("factor")
    is_ntk = scaling.get("type", scaling.get("rope_type")) == "ntk" and scaling.get("mixed_b") is None
    if not is_ntk or not isinstance(factor, int | float) or factor < 1 or not _NTK.issuperset(scaling):
        raise ModelError(
            f"'rope_scaling' in config.json is {scaling!r}, which only the model's own code computes; it is never run, "
            "and 'gte' computes the type 'ntk' with a factor and without mixed_b"
        )
    head_size = needed_number(config, "hidden_size") // needed_number(config, "num_attention_heads")
    rope = {"rope_type": "linear", "rope_theta": theta * factor, "factor": float(factor) ** (2 / head_size)}
    return {**config, "rope_parameters": rope}


NEW = KnownCode(
    source="Alibaba-NLP/new-impl, modeling.py",
    model_types=frozenset(("new",)),
    modules=frozenset(("modeling", "configuration")),
    repositories=frozenset(("Alibaba-NLP/new-impl",)),
    architecture="gte",
    classes={f"New{name}": f"Gte{name}" for name in _NAMES},
    same=frozenset((*_SIZES, *_OTHERS)),
    fixed={
        "layer_norm_type": ("layer_norm",),
        "logn_attention_scale": (False,),
        "pack_qkv": (True,),
        "position_embedding_type": ("rope",),
    },
    without_effect=frozenset(
        (
            *("rope_theta", "rope_scaling"),  # which are translated
            *("logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention", "matryoshka_dimensions"),
        )
    ),
    defaults={
        **{"vocab_size": 30528, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
        **{"intermediate_size": 3072, "max_position_embeddings": 2048, "rope_theta": 10000.0},
    },
    translate=_translate,
)
SNOWFLAKE = replace(
    NEW,
    source="Snowflake/snowflake-arctic-embed-m-v2.0, modeling_hf_alibaba_nlp_gte.py",
    model_types=frozenset(("gte",)),
    modules=frozenset(("modeling_hf_alibaba_nlp_gte", "configuration_hf_alibaba_nlp_gte")),
    repositories=frozenset(),
    classes={f"Gte{name}": f"Gte{name}" for name in _NAMES},
)


def _is_ntk(config: Json) -> bool:
    scaling = config.get("rope_scaling")
    return isinstance(scaling, dict) and scaling.get("type", scaling.get("rope_type")) == "ntk"


# Fine-tuned copies that have lost auto_map: no other code of this model_type has such angles.
SNOWFLAKE_UNNAMED = replace(SNOWFLAKE, chosen_by=_is_ntk, signs=frozenset(("rope_scaling",)))
