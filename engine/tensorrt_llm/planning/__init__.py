"""Decides from files, GPUs and flags whether and how TensorRT-LLM computes a model correctly.

Never imports tensorrt_llm, nor torch.
"""
