"""BERT with rotated queries and keys instead of a table of positions: NomicBERT, GTE and Jina v3.

Tensors may have transformers' names or those of the authors' own code, which most files have.
"""

from collections.abc import Callable

from transformers import PretrainedConfig

from engine.fused.adapters.adapter import Adapter, Recipe, Recipes, affine, derive_angles, in_layers, require
from engine.fused.adapters.bert import common_spec, embeddings
from engine.fused.model.rotary import check
from engine.fused.model.spec import LayerSpec, Spec

_ATTENTION = {"qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "o": ("self_attn.o_proj",)}
_NORMS = affine({"attention_norm": ("post_attention_layernorm",), "mlp_norm": ("post_mlp_layernorm",)})
_OLD_NORMS = affine({"attention_norm": ("norm1",), "mlp_norm": ("norm2",)})
_GATE_AND_UP = affine({"gate_up": ("mlp.gate_proj", "mlp.up_proj")}, has_bias=False)

_NOMIC = affine({**_ATTENTION, "down": ("mlp.down_proj",)}, has_bias=False)
_OLD_NOMIC = affine(
    {"qkv": ("attn.Wqkv",), "o": ("attn.out_proj",), "gate_up": ("mlp.fc12", "mlp.fc11"), "down": ("mlp.fc2",)},
    has_bias=False,
)
_GTE = affine({**_ATTENTION, "down": ("mlp.down_proj",)})
_OLD_GTE = {
    **affine({"qkv": ("attention.qkv_proj",), "o": ("attention.o_proj",), "down": ("mlp.down_proj",)}),
    **affine({"attention_norm": ("attn_ln",), "mlp_norm": ("mlp_ln",)}),
    "gate_up.weight": Recipe(("mlp.up_gate_proj.weight",), swaps_halves=True),
}
_JINA = affine({**_ATTENTION, "gate_up": ("mlp.fc1",), "down": ("mlp.fc2",)})
_OLD_JINA = affine({"qkv": ("mixer.Wqkv",), "o": ("mixer.out_proj",), "gate_up": ("mlp.fc1",), "down": ("mlp.fc2",)})

# Words of Nomic's own code. Where they are in config.json, transformers leaves them alone, so they must say the same.
_OLD_SIZES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
}
_OLD_CHOICES: dict[str, tuple[object, ...]] = {
    "activation_function": ("swiglu",),
    "parallel_block": (False,),
    "prenorm": (False,),
    "qkv_proj_bias": (False,),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "use_rms_norm": (False,),
}


def _nomic(config: PretrainedConfig) -> Spec:
    require(config, **_OLD_CHOICES)
    require(config, **{old: (getattr(config, name),) for old, name in _OLD_SIZES.items()})
    return _rotated(config, is_gated=True)


def _gte(config: PretrainedConfig) -> Spec:
    require(config, logn_attention_scale=(False,), layer_norm_type=("layer_norm",))
    return _rotated(config, is_gated=True)


def _jina(config: PretrainedConfig) -> Spec:
    return _rotated(config, is_gated=False)


def _rotated(config: PretrainedConfig, *, is_gated: bool) -> Spec:
    require(config, position_embedding_type=("rope", "rotary"))
    check(config)
    require(config, rotary_emb_base=(config.rope_parameters["rope_theta"],))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = (LayerSpec(rope=0),) * config.num_hidden_layers
    return common_spec(config, num_positions=0, is_gated=is_gated, head_dim=head_dim, layers=layers)


def _layout(theirs: str, layer: Recipes, *, norm: str = "embeddings.LayerNorm") -> Callable[[Spec], Recipes]:
    def layout(spec: Spec) -> Recipes:
        return embeddings(spec) | affine({"embedding_norm": (norm,)}) | in_layers(spec, theirs, layer)

    return layout


ADAPTERS = {
    "nomic_bert": Adapter(
        _nomic,
        (
            _layout("layers.{}", _NOMIC | _GATE_AND_UP | _NORMS),
            _layout("encoder.layers.{}", _OLD_NOMIC | _OLD_NORMS, norm="emb_ln"),
        ),
        ("nomic_bert.", "bert."),
        derive_angles,
    ),
    "gte": Adapter(
        _gte,
        (_layout("layers.{}", _GTE | _GATE_AND_UP | _NORMS), _layout("encoder.layer.{}", _OLD_GTE)),
        ("gte.", "new."),
        derive_angles,
    ),
    "jina_embeddings_v3": Adapter(
        _jina,
        (_layout("layers.{}", _JINA | _NORMS), _layout("encoder.layers.{}", _OLD_JINA | _OLD_NORMS, norm="emb_ln")),
        ("roberta.",),
        derive_angles,
    ),
}
