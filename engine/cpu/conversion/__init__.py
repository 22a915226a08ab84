"""A cold start: a transformers model is traced, converted and held against its original. Needs torch, transformers."""
