"""The forwards and what they are made of: blocks, linear layers, rotary angles, and the ops with their plain reference.

Knows tensors. Reads no files, launches no kernels by name (see kernels/) and records no graphs (see runner/).
"""
