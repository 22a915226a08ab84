"""The ops of engine.fused.model.ops as Triton kernels for NVIDIA GPUs. They know nothing of models."""
