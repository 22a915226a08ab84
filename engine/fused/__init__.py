"""The `fused` engine: BERT-like and Llama-like transformers on packed sequences, with Triton kernels, on NVIDIA GPUs.

start.py is what engine.registry calls. loading.py leads from options to an engine: offer.py (can it be served?),
weights.py (a folder to tensors, by checkpoint.py and readers.py), adapters/ (an architecture's names and
configuration), model/ (forwards and ops), kernels/ (the ops in Triton, of which one is attention), quantization/ (FP8),
assembly.py (an engine). runner.py, packing.py and cuda_device.py are a batch's way to the GPU and back. Nothing here
knows requests, text or HTTP.
"""
