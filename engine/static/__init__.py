"""The static engine, for models that are a table with a row for each token: StaticEmbedding and model2vec."""
