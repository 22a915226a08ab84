"""The TensorRT-LLM engine: our model classes on its PyTorch backend. Only `private` and `engine` import its package."""
