"""DistilBERT: BERT without token types, with other names."""

from transformers import PretrainedConfig

from engine.fused.adapters.bert import embeddings
from engine.fused.adapters.recipe import Adapter, Recipes, activation_of, affine, in_layers
from engine.fused.model.spec import LayerSpec, Spec

_LAYER = affine(
    {
        "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "o": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "gate_up": ("ffn.lin1",),
        "down": ("ffn.lin2",),
        "mlp_norm": ("output_layer_norm",),
    }
)


def _spec_of(config: PretrainedConfig) -> Spec:
    return Spec(
        architecture=config.model_type,
        family="bert",
        hidden_size=config.dim,
        num_heads=config.n_heads,
        num_kv_heads=config.n_heads,
        head_dim=config.dim // config.n_heads,
        intermediate_size=config.hidden_dim,
        vocab_size=config.vocab_size,
        num_positions=config.max_position_embeddings,
        activation=activation_of(config.activation),
        is_gated=False,
        norm="layer",
        norm_eps=1e-12,  # no configuration changes it
        is_causal=False,
        scaling=(config.dim // config.n_heads) ** -0.5,
        layers=(LayerSpec(),) * config.n_layers,
    )


def _layout(spec: Spec) -> Recipes:
    return embeddings(spec) | in_layers(spec, "transformer.layer.{}", _LAYER)


ADAPTERS = {"distilbert": Adapter(_spec_of, (_layout,), ("distilbert.",))}
