"""Cohere's routes besides rerank: embeddings and tokens, by versions 1 and 2 of its API."""
