"""All that touches tensorrt_llm at run time: our model classes, its arguments, its private names.

The engine alone imports it.
"""
