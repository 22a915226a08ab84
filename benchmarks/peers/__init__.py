"""Embedline and other servers on the same machine, model and texts."""
