"""Retrieve, rerank, cut: the passages that answer a question, out of a collection of Qdrant.

QDRANT_URL names a Qdrant; without it the local mode of its client has the collection in memory.
In this process: EMBEDLINE_URL=http://localhost:8080 python pipelines.py
Beside a server: embedline serve --pipelines pipelines.py, then POST /pipelines/answers {"query": "…"}
"""

import asyncio
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from qdrant_client import AsyncQdrantClient, models

from embedline import AsyncClient
from embedline.pipelines import pipeline, step

Rows = NDArray[np.float32]
PASSAGES = [
    "Bread needs flour, water, salt and time.",
    "The ferry leaves at seven from the old pier.",
    "The ferry takes bicycles, and no cars.",
    "Our office is closed on Sundays.",
    "The night train to Vienna leaves at nine.",
]
qdrant = AsyncQdrantClient(os.environ.get("QDRANT_URL", ":memory:"))
indexing = asyncio.Lock()  # so that runs that begin together index once


@dataclass
class Hit:
    passage: str
    score: float


@step
async def embed(client: AsyncClient, text: str) -> Rows:
    return (await client.embed([text])).embeddings[0]


@step
async def index(client: AsyncClient) -> str:
    """The name of the collection, which the first run fills."""
    async with indexing:
        if not await qdrant.collection_exists("passages"):
            rows = (await client.embed(PASSAGES)).embeddings
            form = models.VectorParams(size=rows.shape[1], distance=models.Distance.COSINE)
            await qdrant.create_collection("passages", vectors_config=form)
            points = [
                models.PointStruct(id=number, vector=row.tolist(), payload={"text": PASSAGES[number]})
                for number, row in enumerate(rows)
            ]
            await qdrant.upsert("passages", points)
    return "passages"


@step(timeout=1.0)
async def retrieve(row: Rows, collection: str, number: int) -> list[str]:
    """A search of your own: in whatever index you have."""
    found = await qdrant.query_points(collection, query=row.tolist(), limit=number)
    return [str(point.payload["text"]) for point in found.points if point.payload]


@step(timeout=10.0)
async def rerank(client: AsyncClient, query: str, passages: list[str]) -> Rows:
    return (await client.rerank(query, passages)).scores


@step
async def cut(passages: list[str], scores: Rows, limit: int) -> list[Hit]:
    return [Hit(passages[best], round(float(scores[best]), 3)) for best in np.argsort(-scores)[:limit]]


@pipeline(timeout=20.0)
def answers(query: str, limit: int = 2) -> list[Hit]:
    """The passages that answer a question, the best first."""
    found = retrieve(embed(query), index(), number=3)
    return cut(found, rerank(query, found), limit)


async def main() -> None:
    async with AsyncClient(os.environ.get("EMBEDLINE_URL", "http://localhost:8080")) as client:
        for hit in await answers.run(client, "When does the boat go?"):
            print(hit.passage)


if __name__ == "__main__":
    asyncio.run(main())

# Prints:
# The ferry leaves at seven from the old pier.
# The ferry takes bicycles, and no cars.
