"""Baseten's performance client: what the tests in our own environment leave."""

from typing import Any

from baseten_performance_client import PerformanceClient, RequestProcessingPreference
from report import Result, ranked, rows, run

IN_TWOS = RequestProcessingPreference(batch_size=2, max_concurrent_requests=4, timeout_s=60)


def embed(task: Any) -> Result:
    client = PerformanceClient(base_url=task.url, api_key=task.key)
    return rows(item.embedding for item in client.embed(input=task.texts, model="m", preference=IN_TWOS).data)


def rerank(task: Any) -> Result:
    client = PerformanceClient(base_url=task.url, api_key=task.key)
    answer = client.rerank(query=task.query, texts=task.documents, truncate=True)
    return ranked((item.index, item.score) for item in answer.data)


def post(task: Any) -> Result:
    client = PerformanceClient(base_url=task.url, api_key=task.key)
    answer = client.batch_post("/v1/embeddings", [{"input": text, "model": "m"} for text in task.texts])
    return rows(one["data"][0]["embedding"] for one in answer.data)


def embed_under_a_prefix(task: Any) -> Result:
    client = PerformanceClient(base_url=f"{task.url}/environments/production/sync", api_key=task.key)
    return rows(item.embedding for item in client.embed(input=task.texts, model="m").data)


run(embed, rerank, post, embed_under_a_prefix)
