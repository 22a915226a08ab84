"""The rerank routes for four families of clients: their bodies, and their answers with the table of routes."""
