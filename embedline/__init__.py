"""Embedline, a self-hosted embedding inference server. Imports nothing beyond the standard library and numpy."""

__version__ = "0.2.0"
