"""Mixedbread's SDK."""

from typing import Any

from mixedbread import Mixedbread
from report import Result, ranked, rows, run


def embed(task: Any) -> Result:
    answer = Mixedbread(api_key=task.key, base_url=task.url).embed(model="m", input=task.texts, normalized=False)
    return rows(item.embedding for item in answer.data)


def embed_normalized(task: Any) -> Result:
    answer = Mixedbread(api_key=task.key, base_url=task.url).embed(model="m", input=task.texts)
    return rows(item.embedding for item in answer.data)


def rerank(task: Any) -> Result:
    answer = Mixedbread(api_key=task.key, base_url=task.url).rerank(
        model="m", query=task.query, input=task.documents, return_input=True
    )
    return ranked((item.index, item.score) for item in answer.data)


run(embed, embed_normalized, rerank)
