"""Bytes to calls and answers to bytes: the server, its connections and parser, the ASGI app, bodies, keys, OpenAPI.

Knows no dialect's fields.
"""
