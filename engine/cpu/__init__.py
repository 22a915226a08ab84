"""The engine `openvino` for CPUs: an engine around a compiled model.

A model from the cache is loaded without torch and transformers. Only tracing.py imports them, to compile a new model.
"""
