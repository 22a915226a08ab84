"""Bodies of requests: read and decoded, compressed ones, and lines without end. Their pieces come through body.py."""
