"""Hugging Face's InferenceClient, which posts to the address itself."""

from typing import Any

from huggingface_hub import InferenceClient
from report import Result, rows, run


def embed(task: Any) -> Result:
    client = InferenceClient(model=task.url, token=task.key)
    return rows(client.feature_extraction(text, normalize=False)[0] for text in task.texts)


def similarity(task: Any) -> Result:
    client = InferenceClient(model=task.url, token=task.key)
    return {"value": client.sentence_similarity(task.query, other_sentences=task.documents)}


run(embed, similarity)
