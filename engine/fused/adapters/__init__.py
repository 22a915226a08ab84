"""One file for each kind of architecture: its configuration becomes a Spec, its tensors' names become ours.

A new architecture is a file here and a row in registry.py. No files are read and no weights are touched here.
"""
