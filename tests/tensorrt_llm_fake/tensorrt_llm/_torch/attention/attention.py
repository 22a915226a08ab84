"""In new versions."""

from tensorrt_llm.stand_in.attention import Attention, QKNormRoPEAttention

__all__ = ["Attention", "QKNormRoPEAttention"]
