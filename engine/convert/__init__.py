"""`embedline convert`: pickled weights to safetensors in an isolated child process, and rerankers to classifiers."""
