"""LangChain's embeddings and rerankers over several APIs."""

from typing import Any

from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_openai import OpenAIEmbeddings
from report import Result, ranked, rows, run


def embed(task: Any) -> Result:
    # without the last one it sends another tokenizer's ids
    client = OpenAIEmbeddings(base_url=f"{task.url}/v1", api_key=task.key, model="m", check_embedding_ctx_length=False)
    return rows(client.embed_documents(task.texts))


def embed_ids(task: Any) -> Result:
    # its defaults: tiktoken's ids, of which the server makes texts again
    client = OpenAIEmbeddings(base_url=f"{task.url}/v1", api_key=task.key)
    return rows(client.embed_documents(task.texts))


def embed_cohere(task: Any) -> Result:
    client = CohereEmbeddings(cohere_api_key=task.key, base_url=task.url, model="m")
    return rows(client.embed_documents(task.texts))


def rerank(task: Any) -> Result:
    client = CohereRerank(cohere_api_key=task.key, base_url=task.url, model="m", top_n=len(task.documents))
    return ranked((one["index"], one["relevance_score"]) for one in client.rerank(task.documents, task.query))


run(embed, embed_ids, embed_cohere, rerank)
