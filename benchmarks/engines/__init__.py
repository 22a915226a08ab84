"""Engines alone, each in a process of its own."""
