"""From the files of a model folder to a tokenizer."""
