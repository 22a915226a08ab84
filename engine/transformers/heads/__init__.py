"""Heads of the transformers engine: scores, labels, sparse weights and token vectors from token rows."""
