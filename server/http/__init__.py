"""Bytes to a call and back: the parser, the ASGI app, bodies, keys, CORS, headers, OpenAPI."""
