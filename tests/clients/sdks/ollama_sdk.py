"""Ollama's client."""

from typing import Any

import ollama
from report import Result, rows, run


def embed(task: Any) -> Result:
    client = ollama.Client(host=task.url, headers={"authorization": f"Bearer {task.key}"})
    return rows(client.embed(model="m", input=task.texts).embeddings)


def embed_one(task: Any) -> Result:
    client = ollama.Client(host=task.url, headers={"authorization": f"Bearer {task.key}"})
    return rows(client.embeddings(model="m", prompt=text).embedding for text in task.texts)


def models(task: Any) -> Result:
    client = ollama.Client(host=task.url, headers={"authorization": f"Bearer {task.key}"})
    return {"value": [model.model for model in client.list().models]}


run(embed, embed_one, models)
