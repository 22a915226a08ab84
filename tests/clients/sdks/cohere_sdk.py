"""Cohere's SDK, versions 1 and 2 of its API."""

from typing import Any

import cohere
from report import Result, ranked, rows, run


def embed(task: Any) -> Result:
    answer = cohere.ClientV2(api_key=task.key, base_url=task.url).embed(
        texts=task.texts, model="m", input_type="search_document", embedding_types=["float"]
    )
    return rows(answer.embeddings.float_)


def embed_v1(task: Any) -> Result:
    """The SDK sends 96 texts at a time and joins the answers."""
    answer = cohere.Client(api_key=task.key, base_url=task.url).embed(
        texts=task.texts * 40, model="m", input_type="search_query"
    )
    return rows(answer.embeddings[-len(task.texts) :])


def embed_signs(task: Any) -> Result:
    answer = cohere.ClientV2(api_key=task.key, base_url=task.url).embed(
        texts=task.texts, model="m", input_type="search_document", embedding_types=["binary", "ubinary", "int8"]
    )
    kinds = answer.embeddings
    return {"value": [kinds.binary, kinds.ubinary, [len(row) for row in kinds.int8]]}


def rerank(task: Any) -> Result:
    answer = cohere.ClientV2(api_key=task.key, base_url=task.url).rerank(
        model="m", query=task.query, documents=task.documents
    )
    return ranked((item.index, item.relevance_score) for item in answer.results)


def rerank_v1(task: Any) -> Result:
    answer = cohere.Client(api_key=task.key, base_url=task.url).rerank(
        model="m", query=task.query, documents=[{"text": text} for text in task.documents], return_documents=True
    )
    assert [item.document.text for item in answer.results] == [task.documents[item.index] for item in answer.results]
    return ranked((item.index, item.relevance_score) for item in answer.results)


run(embed, embed_v1, embed_signs, rerank, rerank_v1)
