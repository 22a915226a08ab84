"""The TensorRT-LLM engine: our model classes on its PyTorch backend. Only `private` and `loading` import that."""
