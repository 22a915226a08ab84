"""Triton kernels for NVIDIA GPUs behind `engine.fused.model.ops.Ops`; they know nothing of models."""
