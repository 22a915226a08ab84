"""Upstream's classes of models. Importing it makes them known."""

from tensorrt_llm._torch.models import (
    modeling_bert,
    modeling_llama,
    modeling_mistral,
    modeling_qwen,
    modeling_qwen3,
)
from tensorrt_llm._torch.models.checkpoints.hf import weight_mapper

__all__ = ["modeling_bert", "modeling_llama", "modeling_mistral", "modeling_qwen", "modeling_qwen3", "weight_mapper"]
