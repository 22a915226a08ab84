"""Rerank documents for a query. With an embedding model by cosine, with a reranker by its own scores."""

import json
import os
import urllib.request

URL = os.environ.get("EMBEDLINE_URL", "http://localhost:8080")
DOCUMENTS = ["Bread needs flour.", "The ferry leaves at seven."]

request = urllib.request.Request(
    f"{URL}/v1/rerank",
    data=json.dumps({"query": "When does the boat go?", "documents": DOCUMENTS, "top_n": 1}).encode(),
)
with urllib.request.urlopen(request) as answer:
    for result in json.load(answer)["results"]:
        print(f"{result['relevance_score']:.2f}  {DOCUMENTS[result['index']]}")

# Prints:
# 0.48  The ferry leaves at seven.
