"""text-embeddings-inference's own routes: embeddings of all kinds, /predict, tokens, and what these share."""
