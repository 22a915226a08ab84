"""Triton kernels for NVIDIA GPUs behind `engine.fused.ops.Ops`; they know nothing of models."""
