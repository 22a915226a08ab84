"""LiteLLM's embedding and rerank over several APIs."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a table of prices
import litellm
from report import Result, ranked, rows, run


def embed(task: Any) -> Result:
    answer = litellm.embedding(model="openai/m", input=task.texts, api_base=f"{task.url}/v1", api_key=task.key)
    return rows(item["embedding"] for item in answer.data)


def embed_hosted_vllm(task: Any) -> Result:
    answer = litellm.embedding(model="hosted_vllm/m", input=task.texts, api_base=f"{task.url}/v1", api_key=task.key)
    return rows(item["embedding"] for item in answer.data)


def embed_cohere(task: Any) -> Result:
    answer = litellm.embedding(model="cohere/m", input=task.texts, api_base=f"{task.url}/v2/embed", api_key=task.key)
    return rows(item["embedding"] for item in answer.data)


def rerank_as(provider: str, task: Any, base: str) -> Result:
    answer = litellm.rerank(
        model=f"{provider}/m", query=task.query, documents=task.documents, api_base=base, api_key=task.key
    )
    return ranked((one["index"], one["relevance_score"]) for one in answer.results)


def rerank(task: Any) -> Result:
    return rerank_as("hosted_vllm", task, task.url)


def rerank_cohere(task: Any) -> Result:
    return rerank_as("cohere", task, task.url)


def rerank_jina(task: Any) -> Result:
    return rerank_as("jina_ai", task, task.url)


def rerank_hugging_face(task: Any) -> Result:
    return rerank_as("huggingface", task, task.url)


run(embed, embed_hosted_vllm, embed_cohere, rerank, rerank_cohere, rerank_jina, rerank_hugging_face)
