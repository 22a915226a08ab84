"""Jina's code that takes the names of BERT and XLM-RoBERTa, and has other layers."""

from dataclasses import replace

from engine.model.json_files import Json
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_LIMITS = ("max_position_embeddings", "type_vocab_size", "layer_norm_eps")
_BERT = ("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification")
_XLM_ROBERTA = ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification")
_COLBERT = "HF_ColBERT"  # engine.model.detection.late_interaction

JINA_BERT = KnownCode(
    source="jinaai/jina-bert-implementation, modeling_bert.py",
    modules=frozenset(("modeling_bert", "configuration_bert")),
    repositories=frozenset(("jinaai/jina-bert-implementation",)),
    architecture="jina_bert",
    is_ours=True,
    classes={name: name for name in (*_BERT, _COLBERT)},
    same=frozenset((*_SIZES, *_LIMITS, "feed_forward_type")),
    fixed={
        "emb_pooler": ("mean",),
        "feed_forward_type": ("geglu", "reglu"),
        "position_embedding_type": ("alibi",),
    },
    without_effect=frozenset(("hidden_act", "model_max_length")),  # its gated layers have an activation of their own
    defaults={
        **{"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
        **{"intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
        **{"position_embedding_type": "absolute", "feed_forward_type": "original"},
    },
)
JINA_BERT_QK = replace(
    JINA_BERT,
    source="jinaai/jina-bert-v2-qk-post-norm, modeling_bert.py",
    repositories=frozenset(("jinaai/jina-bert-v2-qk-post-norm",)),
    translate=lambda _, config: {**config, "has_qk_norm": True},
)
JINA_BERT_FLASH = KnownCode(
    source="jinaai/jina-bert-flash-implementation",
    modules=frozenset(("modeling_bert", "modeling_lora", "modeling_for_glue", "configuration_bert")),
    repositories=frozenset(("jinaai/jina-bert-flash-implementation",)),
    instead="no form of it for transformers' own classes is known here",
)

_FLASH = KnownCode(
    source="jinaai/xlm-roberta-flash-implementation, modeling_xlm_roberta.py",
    model_types=frozenset(("xlm-roberta", "xlm-roberta-flash", "")),  # jina-reranker-v2 has none
    modules=frozenset(("modeling_xlm_roberta", "configuration_xlm_roberta")),
    repositories=frozenset(("jinaai/xlm-roberta-flash-implementation",)),
    same=frozenset((*_SIZES, *_LIMITS)),
    fixed={
        "emb_pooler": ("mean",),
        "hidden_act": ("gelu",),
        "last_layer_subset": (False,),
        "lora_adaptations": (),
        "fused_mlp": (False,),
        "pad_vocab_size_multiple": (1,),
        "rotary_emb_dim": (),
        "rotary_emb_interleaved": (False,),
        "rotary_emb_scale_base": (),
        "truncate_dim": (),
    },
    without_effect=frozenset(
        (
            *("lora_alpha", "lora_dropout_p", "lora_main_params_trainable", "lora_rank", "load_trained_adapters"),
            *("use_flash_attn", "use_reentrant", "fused_bias_fc", "fused_dropout_add_ln", "mlp_checkpoint_lvl"),
            *("matryoshka_dimensions", "output_past", "rotary_emb_base", "task_instructions"),
        )
    ),
)


def _checked(raw: Json, config: Json, *more: str) -> Json:
    """Versions of the code differ in their defaults, and all published models say these keys."""
    for key in (*_SIZES, "layer_norm_eps", "type_vocab_size", *more):
        if key not in raw:
            raise ModelError(f"config.json has no {key!r}")
    return config


def _rotary(raw: Json, config: Json) -> Json:
    _checked(raw, config, "rotary_emb_base")
    return {**config, "rope_parameters": {"rope_type": "default", "rope_theta": raw["rotary_emb_base"]}}


JINA_ROTARY = replace(
    _FLASH,
    chosen_by=lambda config: config.get("position_embedding_type") == "rotary",
    fixed={**_FLASH.fixed, "position_embedding_type": ("rotary",)},
    architecture="jina_embeddings_v3",
    classes={**{f"XLMRoberta{name}": f"JinaEmbeddingsV3{name}" for name in _XLM_ROBERTA}, _COLBERT: _COLBERT},
    translate=_rotary,
)
JINA_ABSOLUTE = replace(
    _FLASH,
    architecture="xlm-roberta-flash",
    is_ours=True,
    layers="xlm-roberta",
    classes={name: name for name in (*(f"XLMRoberta{name}" for name in _XLM_ROBERTA), _COLBERT)},
    fixed={**_FLASH.fixed, "position_embedding_type": ("absolute",)},
    defaults={"position_embedding_type": "absolute"},
    translate=_checked,
)
_ADAPTERS = frozenset(("lora_adaptations", "lora_alpha", "lora_rank"))


def _with_adapters(raw: Json, config: Json) -> Json:
    names = raw.get("lora_adaptations")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ModelError("'lora_adaptations' in config.json is not a list of names")
    return {**_checked(raw, config, "rotary_emb_base"), "rope_theta": raw["rotary_emb_base"]}


JINA_ADAPTERS = replace(
    _FLASH,
    source="jinaai/xlm-roberta-flash-implementation, modeling_xlm_roberta.py and modeling_lora.py",
    modules=_FLASH.modules | {"modeling_lora"},
    sentence_module="custom_st.Transformer",
    architecture="jina_adapters",
    is_ours=True,
    layers="jina_embeddings_v3",
    classes={f"XLMRoberta{name}": f"XLMRoberta{name}" for name in (*_XLM_ROBERTA, "LoRA")},
    same=_FLASH.same | _ADAPTERS,
    fixed={
        **{key: values for key, values in _FLASH.fixed.items() if key not in _ADAPTERS},
        "load_trained_adapters": (True,),
        "position_embedding_type": ("rotary",),
    },
    without_effect=_FLASH.without_effect - _ADAPTERS,
    defaults={"position_embedding_type": "absolute", "load_trained_adapters": False, "lora_rank": 4, "lora_alpha": 1},
    translate=_with_adapters,
)
