"""Texts in, token ids out, in worker processes. Knows nothing of engines, batches or HTTP."""
