"""Code in repositories that somebody has read key by key, so that models can be served without running it.

A file for each family of code, and its row in table.py, which also describes the smallest families. Reads no file, and
imports neither torch nor transformers. CONTRIBUTING has the recipe: "A repository with its own code".
"""
