"""Converts BERT and RoBERTa models from their weights alone, in a third of the time that it takes with torch.

Whatever is not exactly as here is left to engine.cpu.conversion, and so to transformers.
"""
