"""From the files of a model's folder to fused tensors on their device. Computes nothing with them."""
