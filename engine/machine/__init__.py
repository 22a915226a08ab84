"""This machine: CPUs, memory, GPUs, its PyTorch's attention kernel, what failures of libraries mean. Knows no model."""
