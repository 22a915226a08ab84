"""OpenAI's SDK with Azure's addresses and header."""

from typing import Any

import openai
from report import Result, rows, run


def embed(task: Any) -> Result:
    client = openai.AzureOpenAI(azure_endpoint=task.url, api_key=task.key, api_version="2024-10-21")
    answer = client.embeddings.create(model="embedder", input=task.texts)
    return rows(item.embedding for item in answer.data)


run(embed)
