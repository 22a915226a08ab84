"""The APIs that clients speak: one file or folder for each vendor, with a decoder, an encoder and routes for each path.

reading/ and writing/ have what several share. Knows no ASGI and computes nothing.
"""
