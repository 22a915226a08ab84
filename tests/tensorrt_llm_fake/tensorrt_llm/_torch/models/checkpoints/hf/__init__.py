"""Files as transformers writes them."""
