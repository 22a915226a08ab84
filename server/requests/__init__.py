"""What a request does once it is decoded: admission, tokenizing, batching, and what is made of the rows.

Knows no HTTP, no JSON and no dialect. pipeline.py is the way of a request in one file.
"""
