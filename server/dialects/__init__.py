"""The APIs that clients speak: one file or folder for each vendor, with a decoder, an encoder and routes for each path.

reading/ has what several share to read bodies; answers and row_answers have what they share to answer.
Knows no ASGI and computes nothing.
"""
