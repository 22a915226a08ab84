"""Compiles a new model: transformers loads it, it is traced, converted and tested. Imports torch and transformers."""
