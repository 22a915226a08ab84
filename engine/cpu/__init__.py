"""The CPU engines `openvino` and `onnxruntime`: one engine around a compiled executor.

A warm start, from the cache, imports neither torch nor transformers; conversion/ does, and is imported by a cold one
alone.
"""
