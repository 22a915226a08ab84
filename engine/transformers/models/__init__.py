"""Models that AutoModel does not give: layers of our own, and classes of the library that it passes over.

A module for each author's code, imported when a folder needs it; the rows of its models are in OWN of
configuration.py. Its classes are PreTrainedModels whose attention layers call the function that transformers'
AttentionInterface has for `config._attn_implementation`, as the library's do, so that packed attention serves them.
CONTRIBUTING has the recipe: "A repository with its own code".
"""
