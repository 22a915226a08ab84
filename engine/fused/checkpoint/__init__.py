"""Weights from files to the device, fused on the way, and quantized models kept on disk for the next start."""
