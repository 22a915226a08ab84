"""EuroBERT, whose code became transformers' own: its repositories still name the files that it came from."""

from engine.model.known_code.known_code import KnownCode

_NAMES = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")

EUROBERT = KnownCode(
    source="huggingface/transformers, src/transformers/models/eurobert, converted from modeling_eurobert.py",
    model_types=frozenset(("eurobert",)),
    modules=frozenset(("modeling_eurobert", "configuration_eurobert")),
    repositories=frozenset(f"EuroBERT/EuroBERT-{size}" for size in ("210m", "610m", "2.1B")),
    architecture="eurobert",
    classes={f"EuroBert{name}": f"EuroBert{name}" for name in _NAMES},
    same=frozenset(
        (
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps"),
            *("rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias", "classifier_pooling"),
        )
    ),
    renamed={"clf_pooling": "classifier_pooling"},
    without_effect=frozenset(("hidden_dropout", "mask_token", "mask_token_id", "pad_token", "pretraining_tp")),
)
