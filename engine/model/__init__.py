"""The contents of a model's folder: files, modules, tasks, stored quantization. Detection is in detection/.

Reads JSON and safetensors headers with numpy at most: no torch, no transformers, no engine.
"""
