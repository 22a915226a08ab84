"""Tools that make new model folders: convert. They know no engine. Only TensorRT-LLM's quantizer imports them."""
