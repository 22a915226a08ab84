"""The two forwards and their parts: blocks, linear layers, rotary angles, and the ops with a plain torch reference.

Knows tensors. Reads no files, launches no kernels (see kernels/), records no graphs (see runner/).
"""
