"""The ops of engine.fused.model.ops as Triton kernels for NVIDIA GPUs. Knows nothing of models."""
