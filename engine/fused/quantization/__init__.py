"""FP8 for linear layers: which layers, and the gate that checks what it does to what users get.

Quantized models are kept on disk by cache.py. Other engines' quantized copies are made in engine/tensorrt_llm/quantize.
"""
