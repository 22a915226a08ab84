"""The libraries that compile a model for the CPU, one file each, and int8 quantization for ONNX. Imports no torch."""
