"""What the engine relies on in tensorrt_llm's source (contract.json), and the reader that checks a source tree."""
