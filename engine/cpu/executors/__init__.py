"""The libraries that compile a model for the CPU, one file each, and what ONNX needs besides. Imports no torch but in
onnx_export.
"""
