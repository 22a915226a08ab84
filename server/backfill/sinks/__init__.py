"""Databases that get the rows of a job in place of files: pgvector and Qdrant. Only these files know them."""
