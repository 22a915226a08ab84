"""The two forwards and their parts: the spec, linear layers, and the ops with a plain torch reference.

Knows tensors. Reads no files, launches no kernels (see kernels/), records no graphs (see cuda_device.py).
"""
