"""The engine `openvino` for CPUs: an engine around a compiled model.

A model from the cache is loaded without torch and transformers. Only tracing.py and unique_tokens.py import them, to
compile a new model.
"""
