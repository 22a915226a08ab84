"""The shapes of real models, without their weights, and the arithmetic that one token of them is.

Operations of a token, a multiplication and an addition counting two: 2 for each parameter of the layers' products, and
4 L N D S for attention among S tokens (N heads of D numbers in L layers: queries by keys, and weights by values), half
of that where a token sees only those before it. Embeddings, norms and activations count nothing, nor does what a model
has and an embedding does not need: a head for words, a pooler.
"""

from dataclasses import dataclass, field
from typing import Any

BERT = "bert"
LLAMA = "llama"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One model."""

    name: str
    model_type: str  # transformers' name of the architecture
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_seqlen: int
    pooling: str  # "cls", "mean" or "last"
    is_gated: bool = False
    is_causal: bool = False
    config: dict[str, Any] = field(default_factory=dict)  # of transformers' own names, what is not above

    @property
    def num_linear_parameters(self) -> int:
        """Of the layers' products."""
        return self.num_layers * sum(rows * columns for rows, columns in self.products().values())

    def products(self) -> dict[str, tuple[int, int]]:
        """[N, K] of each product of a layer."""
        h, attended = self.hidden_size, self.num_heads * self.head_dim
        return {
            "qkv": ((self.num_heads + 2 * self.num_kv_heads) * self.head_dim, h),
            "o": (h, attended),
            "gate_up": ((2 if self.is_gated else 1) * self.intermediate_size, h),
            "down": (h, self.intermediate_size),
        }

    def flop_per_token(self, seqlen: int) -> float:
        """Of a text of so many tokens."""
        attention = 4 * self.num_layers * self.num_heads * self.head_dim * seqlen
        return 2 * self.num_linear_parameters + attention / (2 if self.is_causal else 1)

    def pruned_share(self, seqlen: int) -> float:
        """Which part of these operations is left where the last layer computes what only pooled tokens need."""
        if self.pooling == "mean":
            return 1.0
        attention = 4 * self.num_heads * self.head_dim * seqlen / (2 if self.is_causal else 1)
        products = self.products()
        keys_and_values = 2 * self.num_kv_heads * self.head_dim * self.hidden_size
        of_pooled = 2 * (sum(rows * columns for rows, columns in products.values()) - keys_and_values) + attention
        return 1 - of_pooled * (1 - 1 / seqlen) / self.flop_per_token(seqlen)

    def model_config(self) -> dict[str, Any]:
        """What transformers' AutoConfig is given."""
        return {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            **({"num_key_value_heads": self.num_kv_heads, "head_dim": self.head_dim} if self.is_gated else {}),
            **self.config,
        }


_BERT_CONFIG = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0}
_XLMR_CONFIG = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}
_QWEN3_CONFIG = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "attention_bias": False}

_LLAMA_CONFIG = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "pad_token_id": 0}


def _bert(name: str, hidden: int, layers: int, heads: int, pooling: str) -> Shape:
    return Shape(
        name=name, model_type="bert", hidden_size=hidden, num_layers=layers, num_heads=heads, num_kv_heads=heads,
        head_dim=hidden // heads, intermediate_size=4 * hidden, vocab_size=30_522, max_seqlen=512, pooling=pooling,
        config={**_BERT_CONFIG, "max_position_embeddings": 512},
    )  # fmt: skip


def _qwen3(name: str, hidden: int, layers: int, heads: int, intermediate: int) -> Shape:
    return Shape(
        name=name, model_type="qwen3", hidden_size=hidden, num_layers=layers, num_heads=heads, num_kv_heads=8,
        head_dim=128, intermediate_size=intermediate, vocab_size=151_669, max_seqlen=32_768, pooling="last",
        is_gated=True, is_causal=True,
        config={**_QWEN3_CONFIG, "max_position_embeddings": 32_768, "tie_word_embeddings": True},
    )  # fmt: skip


MINILM = _bert("all-MiniLM-L6", 384, 6, 12, "mean")
BERT_BASE = _bert("BERT-base", 768, 12, 12, "cls")
BGE_M3 = Shape(
    name="bge-m3", model_type="xlm-roberta", hidden_size=1024, num_layers=24, num_heads=16, num_kv_heads=16,
    head_dim=64, intermediate_size=4096, vocab_size=250_002, max_seqlen=8192, pooling="cls",
    config={**_XLMR_CONFIG, "max_position_embeddings": 8194},
)  # fmt: skip
QWEN3_06B = _qwen3("Qwen3-0.6B", 1024, 28, 16, 3072)
QWEN3_4B = _qwen3("Qwen3-4B", 2560, 36, 32, 9728)
QWEN3_8B = _qwen3("Qwen3-8B", 4096, 36, 32, 12_288)

LLAMA_8B = Shape(
    name="Llama-3.1-8B", model_type="llama", hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8,
    head_dim=128, intermediate_size=14_336, vocab_size=128_256, max_seqlen=8192, pooling="last", is_gated=True,
    is_causal=True, config={**_LLAMA_CONFIG, "max_position_embeddings": 8192},
)  # fmt: skip

MODELS = (MINILM, BERT_BASE, BGE_M3, QWEN3_06B, QWEN3_8B)  # measured end to end
PRODUCTS = (QWEN3_8B, QWEN3_06B, BGE_M3, MINILM, QWEN3_4B, BERT_BASE)  # whose products are measured

TINY_BERT = Shape(
    name="toy BERT", model_type="bert", hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16,
    intermediate_size=96, vocab_size=200, max_seqlen=64, pooling="mean",
    config={**_BERT_CONFIG, "max_position_embeddings": 64},
)  # fmt: skip
TINY_QWEN3 = Shape(
    name="toy Qwen3", model_type="qwen3", hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32,
    intermediate_size=96, vocab_size=200, max_seqlen=64, pooling="last", is_gated=True, is_causal=True,
    config={**_QWEN3_CONFIG, "max_position_embeddings": 64, "tie_word_embeddings": True},
)  # fmt: skip
TINY = (TINY_BERT, TINY_QWEN3)
