"""Converts any model that transformers has a class for: it loads the model, and OpenVINO traces it. Imports torch."""
