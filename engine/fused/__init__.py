"""The `fused` engine: BERT-like and Llama-like transformers on packed sequences, with Triton kernels, on NVIDIA GPUs.

start.py is what engine.registry calls. loading.py leads from options to an engine, by way of the folders: checkpoint/
(files to tensors), adapters/ (an architecture's names and configuration), model/ (forwards and ops), kernels/ (the ops
in Triton), attention/ (which attention kernel), quantization/ (FP8), runner/ (a batch's way to the GPU and back).
Nothing here knows requests, text or HTTP.
"""
