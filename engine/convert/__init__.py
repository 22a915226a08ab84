"""`embedline convert`: weights that are pickles, rewritten as safetensors by a process of their own."""
