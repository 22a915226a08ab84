"""The list of what the engine needs in tensorrt_llm's source (contract.json), and its check against a source tree."""
