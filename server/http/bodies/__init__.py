"""Bodies that are no plain JSON: compressed ones, and lines without end. Bodies as they come are read in body.py."""
