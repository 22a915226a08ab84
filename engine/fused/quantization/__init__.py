"""FP8: how a linear layer is quantized (scheme.py), which layers are, and the gate that measures what it costs."""
