"""From a model's files to its task, heads and lengths. The rules and their order are in rules.py."""
