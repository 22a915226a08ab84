"""Voyage's SDK."""

from typing import Any

import voyageai
from report import Result, ranked, rows, run


def client_of(task: Any) -> voyageai.Client:
    return voyageai.Client(api_key=task.key, base_url=f"{task.url}/v1", max_retries=2)


def embed(task: Any) -> Result:
    return rows(client_of(task).embed(task.texts, model="m", input_type="document").embeddings)


def embed_signs(task: Any) -> Result:
    signs = client_of(task).embed(task.texts, model="m", output_dtype="binary").embeddings
    unsigned = client_of(task).embed(task.texts, model="m", output_dtype="ubinary").embeddings
    int8 = client_of(task).embed(task.texts, model="m", output_dtype="int8").embeddings
    return {"value": [signs, unsigned, [len(row) for row in int8]]}


def rerank(task: Any) -> Result:
    answer = client_of(task).rerank(task.query, task.documents, model="m")
    assert [item.document for item in answer.results] == [task.documents[item.index] for item in answer.results]
    return ranked((item.index, item.relevance_score) for item in answer.results)


run(embed, embed_signs, rerank)
