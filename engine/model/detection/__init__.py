"""Finds a model's task, heads and lengths from its files. Their order is in engine/model/model_folder.py:detect."""
