"""A batch's way to the device and back: packing, padded shapes, recorded graphs, one slot for each batch under way.

Knows no model: what it runs is a function of the packed inputs.
"""
