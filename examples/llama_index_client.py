"""Embeddings with LlamaIndex: pip install llama-index-embeddings-openai-like"""

import os

from llama_index.embeddings.openai_like import OpenAILikeEmbedding

url = os.environ.get("EMBEDLINE_URL", "http://localhost:8080")
embedding = OpenAILikeEmbedding(
    model_name="all-MiniLM-L6-v2",
    api_base=f"{url}/v1",
    api_key="not-needed",
    embed_batch_size=256,
)

documents = embedding.get_text_embedding_batch(["The ferry leaves at seven.", "Bread needs flour, water and salt."])
query = embedding.get_query_embedding("When does the boat go?")
print([f"{embedding.similarity(query, document):.2f}" for document in documents])

# Prints:
# ['0.48', '0.01']
