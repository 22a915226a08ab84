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


def embed_documents(task: Any) -> Result:
    """Each of one text, which is embedded as any text is."""
    client, documents = client_of(task), task.documents
    answer = client.contextualized_embed([[text] for text in documents], model="m", input_type="document")
    assert [len(result.embeddings) for result in answer.results] == [1] * len(documents)
    assert answer.total_tokens > 0
    queries = client.contextualized_embed(documents, model="m", input_type="query", output_dtype="binary")
    found = ([result.embeddings[0] for result in each.results] for each in (answer, queries))
    return {"value": list(found)}


def rerank(task: Any) -> Result:
    answer = client_of(task).rerank(task.query, task.documents, model="m")
    assert [item.document for item in answer.results] == [task.documents[item.index] for item in answer.results]
    return ranked((item.index, item.relevance_score) for item in answer.results)


run(embed, embed_signs, embed_documents, rerank)
