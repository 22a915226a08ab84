"""Packed batches in, vectors out. Knows tensors; nothing of text, requests or HTTP."""
