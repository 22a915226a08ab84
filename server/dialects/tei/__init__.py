"""text-embeddings-inference's own routes: one file for each group of routes, their bodies and answers."""
