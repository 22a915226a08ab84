"""A load generator for servers of embeddings: `embedline bench URL`. Knows HTTP, and nothing of our own server."""
