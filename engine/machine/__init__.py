"""What this machine has and can do: CPUs, memory, GPUs, and the attention that its PyTorch brings. Knows no model."""
