"""The way of a decoded request: admission, tokenizing, batching, and scores or labels made of the rows.

Knows no HTTP, no JSON and no dialect. pipeline.py has the way of a request in one file; admission.py says who is let
in, with what row_memory.py and limits.py know.
"""
