"""Embeddings with LangChain: pip install langchain-openai"""

import os

from langchain_openai import OpenAIEmbeddings

url = os.environ.get("EMBEDLINE_URL", "http://localhost:8080")
embeddings = OpenAIEmbeddings(
    model="all-MiniLM-L6-v2",
    base_url=f"{url}/v1",
    api_key="not-needed",
    # Without this LangChain sends the token ids of an OpenAI model, which mean something else to every other model.
    check_embedding_ctx_length=False,
)

documents = embeddings.embed_documents(["The ferry leaves at seven.", "Bread needs flour, water and salt."])
query = embeddings.embed_query("When does the boat go?")
print([round(sum(a * b for a, b in zip(query, document, strict=True)), 2) for document in documents])

# Prints:
# [0.48, 0.01]
