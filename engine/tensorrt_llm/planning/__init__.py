"""What computes a model in TensorRT-LLM, and whether it would be right, decided from the files, GPUs and flags.

Never imports tensorrt_llm, nor torch.
"""
