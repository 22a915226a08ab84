"""Chroma's embedding functions."""

from typing import Any

from chromadb.utils import embedding_functions as functions
from report import Result, rows, run


def embed(task: Any) -> Result:
    function = functions.OpenAIEmbeddingFunction(api_key=task.key, model_name="m", api_base=f"{task.url}/v1")
    return rows(function(task.texts))


def embed_tei(task: Any) -> Result:
    return rows(functions.HuggingFaceEmbeddingServer(url=f"{task.url}/embed", api_key_env_var="CHROMA_KEY")(task.texts))


run(embed, embed_tei)
