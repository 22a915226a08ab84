"""A folder's linear layers as block FP8, on the CPU, in bounded memory: `embedline quantize`, and a start's copy."""
