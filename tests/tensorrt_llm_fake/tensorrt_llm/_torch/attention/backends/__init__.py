"""In new versions."""

from tensorrt_llm._torch.attention.backends.interface import AttentionMetadata

__all__ = ["AttentionMetadata"]
