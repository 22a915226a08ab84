"""Code that all processes share: frames, connections, control channel, metrics, page, pairs of texts.

Imports no other package.
"""
