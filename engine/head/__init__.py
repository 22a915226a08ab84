"""What becomes of a pooled row before it is handed out: the modules that a sentence-transformers folder has for it."""
