"""Ollama's routes: one file for each group of routes, their bodies and answers."""
