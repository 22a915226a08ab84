"""The TensorRT-LLM engine: our model classes on the library's PyTorch backend.

planning/ decides from a model's files what computes it, and imports no tensorrt_llm, so the server asks it before it
starts a process. Only loading.py and private.py import tensorrt_llm; models.py has our classes. quantize/ makes a copy
of a model in block FP8. engine.py joins them.
"""
