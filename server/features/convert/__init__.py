"""Weights that are pickles become safetensors: by `embedline convert`, and when a server starts."""
