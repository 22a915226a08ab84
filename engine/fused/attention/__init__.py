"""PyTorch's attention kernels beside our own, and the choice between them by timing at load."""
