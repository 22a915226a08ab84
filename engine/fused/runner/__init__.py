"""Moves batches to the device and back: packing, padded shapes, CUDA graphs, one slot for each batch in the engine.

Knows no model: it runs a function of the packed inputs.
"""
