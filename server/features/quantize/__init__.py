"""`embedline quantize`: a model's copy with its linear layers in block FP8, as the TensorRT-LLM engine makes it."""
