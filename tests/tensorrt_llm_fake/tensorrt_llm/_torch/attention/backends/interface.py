"""In new versions."""

from tensorrt_llm.stand_in.interface import AttentionMetadata, PredefinedAttentionMask

__all__ = ["AttentionMetadata", "PredefinedAttentionMask"]
