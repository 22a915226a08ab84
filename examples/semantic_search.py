"""Semantic search with numpy: embed once, then rank by cosine. Rows travel as raw bytes, which is cheaper than JSON."""

import json
import os
import urllib.request

import numpy as np

URL = os.environ.get("EMBEDLINE_URL", "http://localhost:8080")
TEXTS = ["The ferry leaves at seven.", "Bread needs flour, water and salt.", "The last train goes at midnight."]


def embed(texts: list[str]) -> np.ndarray:
    """One row of length 1 for each text, float32 [len(texts), dimensions]."""
    request = urllib.request.Request(
        f"{URL}/v1/embeddings",
        data=json.dumps({"input": texts}).encode(),
        headers={"accept": "application/octet-stream"},
    )
    with urllib.request.urlopen(request) as answer:
        shape = [int(number) for number in answer.headers["x-embedline-shape"].split(",")]
        return np.frombuffer(answer.read(), "<f4").reshape(shape)


index = embed(TEXTS)
scores = index @ embed(["When does the boat go?"])[0]  # rows have length 1, so this is the cosine
for place in np.argsort(-scores):
    print(f"{scores[place]:.2f}  {TEXTS[place]}")

# Prints:
# 0.48  The ferry leaves at seven.
# 0.43  The last train goes at midnight.
# 0.01  Bread needs flour, water and salt.
