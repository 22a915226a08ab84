"""Models that are a table with a row for each token, and no network: StaticEmbedding and model2vec."""
