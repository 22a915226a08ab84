"""Infinity's client, which always sends dimensions: 0."""

from typing import Any

from infinity_client import AuthenticatedClient
from infinity_client.api.default import embeddings, health, models
from infinity_client.api.default import rerank as rerank_route
from infinity_client.models import OpenAIEmbeddingInputText, RerankInput
from report import Result, ranked, rows, run


def client_of(task: Any) -> AuthenticatedClient:
    return AuthenticatedClient(base_url=task.url, token=task.key)


def parsed(reply: Any) -> Any:
    """It raises nothing by itself."""
    if reply.status_code != 200:
        raise RuntimeError(f"{reply.status_code.value}: {reply.content.decode()}")
    return reply.parsed


def embed(task: Any) -> Result:
    body = OpenAIEmbeddingInputText.from_dict({"input": task.texts, "model": "m", "modality": "text"})
    answer = parsed(embeddings.sync_detailed(client=client_of(task), body=body))
    return rows(item.embedding for item in answer.data)


def rerank(task: Any) -> Result:
    body = RerankInput.from_dict({"query": task.query, "documents": task.documents, "model": "m"})
    answer = parsed(rerank_route.sync_detailed(client=client_of(task), body=body))
    return ranked((item.index, item.relevance_score) for item in answer.results)


def state(task: Any) -> Result:
    listed = parsed(models.sync_detailed(client=client_of(task)))
    is_healthy = parsed(health.sync_detailed(client=client_of(task))) is not None
    return {"value": [is_healthy, [one.stats is not None for one in listed.data]]}


run(embed, rerank, state)
