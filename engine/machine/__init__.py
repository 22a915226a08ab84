"""This machine: CPUs, memory, GPUs, and the attention kernel of its PyTorch. Knows no model."""
