"""The tiny model of each architecture in engine/model/coverage.py, and what shows that a feature of it counts.

A new row there has a tiny model and is tested with it. An entry here turns on the features that tests should see.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.model import coverage
from tests.parity.changes import (
    Change,
    config,
    shifted_positions,
    without_distances,
    without_group_order,
    without_relative_positions,
)

BGE_M3, STATIC = "XLM-RoBERTa with bge-m3's heads", "Static embeddings (model2vec)"  # rows without one of their own

VOCAB_SIZE = 131
HIDDEN_SIZE = 40
NUM_POSITIONS = 64

SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": NUM_POSITIONS,
    # large enough for attention to have preferences, so that a token from next door would show
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_OFFSET = {"pad_token_id": 1, "type_vocab_size": 1}  # of RoBERTa and its kin: positions are numbered from there
_GQA = {"num_key_value_heads": 2, "head_dim": 10}
_WIDE = {"num_key_value_heads": 2, "head_dim": 14}  # more than the rows' share
_SLIDING, _FULL = "sliding_attention", "full_attention"
_WINDOW = {"sliding_window": 6, "layer_types": [_SLIDING, _FULL]}
_GEMMA = {**_GQA, **_WINDOW, "query_pre_attn_scalar": 8}
_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "position_buckets": 8,
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "type_vocab_size": 0,
}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_SOFTCAP, _BIDIRECTIONAL = "attn_logit_softcapping", "use_bidirectional_attention"

_PLAIN = {"rope_type": "default", "rope_theta": 100.0}
_FROM_16 = {"rope_theta": 100.0, "original_max_position_embeddings": 16}
_LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_FROM_16}
_YARN = {"rope_type": "yarn", "factor": 4.0, **_FROM_16}
_FACTORS = {"short_factor": [1.0, 1.5, 2.0, 3.0, 4.0], "long_factor": [4.0] * 5}
_LONG = {"rope_type": "longrope", **_FACTORS, "rope_theta": 100.0, "original_max_position_embeddings": 48}
_BETA = "llama_4_scaling_beta"  # by which queries grow with each 16 tokens of their place: so much that it shows
_GROWING = {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, _BETA: 2.0}
_MINISTRAL3 = {**_GQA, "rope_parameters": _GROWING}
_TWO_SCALES = {_FULL: _LINEAR, _SLIDING: _PLAIN}
_TWO_THETAS = {_FULL: _PLAIN, _SLIDING: {"rope_type": "default", "rope_theta": 10.0}}
_MARKERS = {"cls_token_id": 2, "sep_token_id": 3}
_MODERNBERT = {"local_attention": 12, "layer_types": [_SLIDING, _FULL], "rope_parameters": _TWO_THETAS, **_MARKERS}
_GEMMA3 = {**_GEMMA, "rope_parameters": _TWO_SCALES}
_EMBEDDING_GEMMA2 = {
    **_GQA,
    **_WINDOW,
    **{"global_head_dim": 16, "num_global_key_value_heads": 1},
    **{"hidden_size_per_layer_input": 12, "embedding_dim": 24},
    "rope_parameters": _TWO_THETAS,
}

_MASK = "mask direction"
_TURNED = {_MASK: config(is_decoder=True)}  # sees earlier tokens alone
_BOTH_WAYS = {_MASK: config(is_causal=False)}
_ONE_WAY = {_MASK: config(is_causal=True)}
_GROWTH = {"growth of queries": config(rope_parameters=_GROWING | {_BETA: 1e-9})}
_POSITIONS = {"position offset": config(pad_token_id=0)}
_DISTANCES = "relative positions"


@dataclass(frozen=True, slots=True)
class Own:
    """What a tiny model has of its own."""

    config: Mapping[str, Any] = field(default_factory=dict)  # what differs from SHARED
    others: Mapping[str, Change] = field(default_factory=dict)  # features that `config` does not show
    pooling: str | tuple[str, ...] = "mean"  # sentence-transformers' names

    @property
    def settings(self) -> dict[str, Any]:
        """For the configuration."""
        return {**SHARED, **self.config}

    @property
    def features(self) -> dict[str, Change]:
        """By name, the change of the model's folder that turns it off.

        Two features need none, for they are the batch's: token types, and what pooling leaves out of prompts.
        """
        found = dict(self.others)
        if self.config.get("num_key_value_heads", 1) > 1:
            found["GQA"] = without_group_order
        if _SLIDING in self.config.get("layer_types", ()):
            found.setdefault("window", config(layer_types=[_FULL, _FULL]))
        elif "sliding_window" in self.config:
            found["window"] = config(sliding_window=None)
        rope = self.config.get("rope_parameters", {})
        if rope.keys() == {_FULL, _SLIDING}:
            found["RoPE of each kind of layer"] = config(rope_parameters=dict.fromkeys(rope, rope[_SLIDING]))
        elif rope:
            growth = {key: rope[key] for key in (_BETA, *_FROM_16) if _BETA in rope}  # another feature
            found["RoPE scaling"] = config(rope_parameters=growth | _PLAIN)
        return found


@dataclass(frozen=True, slots=True)
class Tiny:
    """A tiny model."""

    model_type: str
    own: Own = field(default_factory=Own)


OWN: dict[str, Own] = {
    "BERT": Own({}, _TURNED),
    "RoBERTa": Own(_OFFSET, _TURNED | _POSITIONS, "cls"),
    "XLM-RoBERTa": Own(_OFFSET, _TURNED | _POSITIONS, "weightedmean"),
    "CamemBERT": Own(_OFFSET, _TURNED | _POSITIONS, "max"),
    "Data2VecText": Own(_OFFSET, _TURNED | _POSITIONS, "cls"),
    "ERNIE": Own({}, _TURNED, "max"),
    "DistilBERT": Own({"dim": HIDDEN_SIZE, "n_heads": 4, "n_layers": 2, "hidden_dim": 52}),
    "ELECTRA": Own({"embedding_size": 18}, _TURNED, ("cls", "mean")),
    "ALBERT": Own({"embedding_size": 18}, {}, "mean_sqrt_len_tokens"),
    "MPNet": Own(_OFFSET, {"position offset": shifted_positions, _DISTANCES: without_relative_positions}),
    "DeBERTa-v2": Own(_DEBERTA, {_DISTANCES: without_distances}, "cls"),
    "NomicBERT": Own({"rope_parameters": _LINEAR}),
    "GTE": Own({**_OFFSET, "rope_parameters": _LINEAR}, {}, "cls"),
    "Jina v3": Own({**_OFFSET, "rope_parameters": _LINEAR}),
    "ModernBERT": Own(_MODERNBERT, {}, "cls"),
    "EuroBERT": Own({**_GQA, "mask_token_id": 4}),
    "UltraBERT": Own({**_GQA, **_WINDOW, "rope_parameters": _TWO_THETAS}, {}, "cls"),
    "Qwen2": Own({**_GQA, "rope_parameters": _YARN}, _BOTH_WAYS, "lasttoken"),
    "Qwen2, bidirectional": Own({**_GQA, "is_causal": False}, _ONE_WAY),
    "Qwen3": Own({**_WIDE, **_WINDOW, "use_sliding_window": True}, _BOTH_WAYS, "lasttoken"),
    "Mistral": Own({**_GQA, "sliding_window": 6}, _BOTH_WAYS, "lasttoken"),
    "Ministral": Own({**_GQA, **_WINDOW}, _BOTH_WAYS),
    "Ministral 3": Own(_MINISTRAL3, _BOTH_WAYS | _GROWTH, "lasttoken"),
    "Ministral 3, bidirectional": Own({**_MINISTRAL3, "is_causal": False}, _ONE_WAY | _GROWTH),
    "Llama": Own({**_GQA, "rope_parameters": _LLAMA3}, _BOTH_WAYS, "weightedmean"),
    "Llama, bidirectional": Own({**_GQA, "is_causal": False, "rope_parameters": _LINEAR}, _ONE_WAY),
    "Gemma": Own({"num_key_value_heads": 1, "head_dim": 14}, _BOTH_WAYS, "lasttoken"),
    "Gemma 2": Own({**_GEMMA, _SOFTCAP: 2.0}, {**_BOTH_WAYS, "softcap": config(**{_SOFTCAP: None})}),
    "Gemma 3": Own(_GEMMA3, {_MASK: config(**{_BIDIRECTIONAL: True})}, "lasttoken"),
    "EmbeddingGemma": Own({**_GEMMA3, _BIDIRECTIONAL: True}, {_MASK: config(**{_BIDIRECTIONAL: False})}),
    "EmbeddingGemma 2": Own(_EMBEDDING_GEMMA2, {"window": config(sliding_window=NUM_POSITIONS)}),
    "Phi3": Own({"num_key_value_heads": 2, "rope_parameters": _LONG}, _BOTH_WAYS, "lasttoken"),
    "SmolLM3": Own({**_GQA, "no_rope_layers": [1, 0]}, {**_BOTH_WAYS, "no RoPE": config(no_rope_layers=[1, 1])}),
    "LFM2": Own({**_GQA, "layer_types": ["conv", _FULL]}),
    "GPT-2": Own({"n_embd": HIDDEN_SIZE, "n_head": 4, "n_layer": 2, "n_positions": NUM_POSITIONS}),
    "GPT-OSS": Own({**_GQA, **_WINDOW, **_EXPERTS}, {}, "lasttoken"),
}

ARCHITECTURES = {
    row.name: Tiny(row.model_type, OWN.get(row.name, Own()))
    for row in coverage.ARCHITECTURES
    if row.name not in (BGE_M3, STATIC)
}
