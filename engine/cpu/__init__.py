"""The CPU engines `openvino` and `onnxruntime`: one engine around a compiled executor.

A model from the cache is loaded without torch and transformers. Only conversion/ imports them, to compile a new model.
"""
