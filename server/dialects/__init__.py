"""The APIs that clients speak: for each a decoder, an encoder and routes. Knows no ASGI and computes nothing."""
