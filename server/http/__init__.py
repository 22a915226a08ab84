"""Bytes to calls and answers to bytes: the parser, the ASGI app, bodies, keys, headers, OpenAPI. Knows no dialect's
fields."""
