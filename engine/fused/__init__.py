"""The `fused` engine: BERT-like and Llama-like transformers on packed sequences, with Triton kernels, on NVIDIA GPUs.

start.py is what engine.registry calls. loading.py leads from options to an engine: choices.py (can it be served?),
checkpoint/ (files to tensors), adapters/ (an architecture's names and configuration), model/ (forwards and ops),
kernels/ (the ops in Triton, of which one is attention), quantization/ (FP8), assembly.py and first_batches.py (an
engine, and whether it is right), runner/ (a batch's way to the GPU and back). Nothing here knows requests, text or
HTTP.
"""
