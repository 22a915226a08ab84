"""What the engine needs of tensorrt_llm's source (contract.json), and the reader that checks a source tree."""
