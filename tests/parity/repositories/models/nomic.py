"""NomicBERT: config.json names code of its own, which is never run, and has its words."""

from typing import Any

from tests.parity.repositories.facts import Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.models.bert import QUERY, UNCASED
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words


def _code(repository: str, **classes: str) -> dict[str, Any]:
    """auto_map: purpose -> file and class."""
    return {"auto_map": {purpose: f"{repository}--{name}" for purpose, name in classes.items()}}


_NOMIC: dict[str, Any] = {
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "attn_pdrop": 0.0,
    **_code(
        "nomic-ai/nomic-bert-2048",
        AutoConfig="configuration_hf_nomic_bert.NomicBertConfig",
        AutoModel="modeling_hf_nomic_bert.NomicBertModel",
        AutoModelForMaskedLM="modeling_hf_nomic_bert.NomicBertForPreTraining",
    ),
    "bos_token_id": None,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "eos_token_id": None,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.0,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "torch_dtype": "float32",
    "transformers_version": "4.37.2",
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 30528,
}
# the same in the words of transformers' class, in small sizes
_NOMIC_LIBRARY: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 256,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "type_vocab_size": 2,
    "vocab_size": 320,
}
_NOMIC_PREFIXES = ("query: search_query: ", "document: search_document: ")

REPOSITORIES: tuple[Repository, ...] = tuple(
    embedding(
        name,
        _NOMIC,
        Words.UNCASED,
        pooling,
        length=length,
        model_max_length=8192,
        is_normalized=is_normalized,
        rows=rows,
        ids=UNCASED,
        card=card,
        library=_NOMIC_LIBRARY,
    )
    for name, pooling, is_normalized, length, rows, card in (
        (
            "nomic-ai/nomic-embed-text-v1",
            "mean",
            True,
            8192,
            (Source.CARD, Source.VLLM_NOMIC, Source.FASTEMBED),
            _NOMIC_PREFIXES,
        ),
        (
            "nomic-ai/nomic-embed-text-v1.5",
            "mean",
            False,
            8192,
            (Source.CARD, Source.VLLM_NOMIC, Source.FASTEMBED),
            _NOMIC_PREFIXES,
        ),
        (
            "Snowflake/snowflake-arctic-embed-m-long",
            "cls",
            True,
            2048,
            (Source.VLLM_ARCTIC, Source.FASTEMBED_RS, Source.MTEB),
            (QUERY,),
        ),
    )
)
