"""Upstream's PyTorch backend: what is imported from here is private there."""
