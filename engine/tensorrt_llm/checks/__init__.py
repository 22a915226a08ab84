"""Whether TensorRT-LLM would compute a model's folder rightly, decided from the files. Never imports the library."""
