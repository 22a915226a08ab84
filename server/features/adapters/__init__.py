"""Folders of adapters are served as models: a start merges them into their bases."""
