"""All that touches tensorrt_llm at run time: our model classes, the arguments of its LLM, its private names.

Only private.py and loading.py import tensorrt_llm. Only the engine imports this folder.
"""
