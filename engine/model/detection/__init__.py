"""Finds a model's task, heads and lengths from its files. The rules and their order are in rules.py."""
