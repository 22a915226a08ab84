"""Pipelines for every placement, and a program that runs them in its own process and on a Ray Serve of its own.

python placed.py URL FILE: writes for each of the two places what each run gave, or its error, as JSON.
"""

import asyncio
import importlib
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedline import AsyncClient
from embedline.pipelines import InvalidInput, Pipeline, StepFailed, pipeline, step

Rows = NDArray[np.float32]
PASSAGES = ["bread needs flour", "the ferry leaves at seven", "the ferry takes bicycles", "closed on Sundays"]


@dataclass
class Hit:
    passage: str
    score: float


@step
async def embed(client: AsyncClient, text: str) -> Rows:
    row: Rows = (await client.embed([text], "any")).embeddings[0]
    return row


@step
async def index(client: AsyncClient) -> Rows:
    return (await client.embed(PASSAGES, "any")).embeddings


@step
async def retrieve(row: Rows, rows: Rows, number: int) -> list[int]:
    assert row.dtype == rows.dtype == np.float32
    if number < 1:
        raise InvalidInput("number must be at least 1")
    return [int(best) for best in np.argsort(-(rows @ row))[:number]]


@step(timeout=30.0)
async def cut(found: list[int], row: Rows, rows: Rows) -> list[Hit]:
    return [Hit(PASSAGES[one], float(rows[one] @ row)) for one in found]


@step
async def missing(text: str) -> str:
    return {"a": text}[text]


@pipeline
def search(query: str, number: int = 2) -> list[Hit]:
    row, rows = embed(query), index()
    return cut(retrieve(row, rows, number), row, rows)


@pipeline
def twice(text: str) -> Rows:
    """A step that is used twice, and arrays that go out."""
    return both(embed(text), embed("hello"))


@step
async def both(a: Rows, b: Rows) -> Rows:
    return np.concatenate([a, b])


@pipeline
def fails(text: str) -> str:
    return missing(missing(text))


RUNS: list[tuple[Pipeline[..., Any], dict[str, Any]]] = [
    (search, {"query": "when does the boat go"}),
    (search, {"query": "when", "number": 0}),
    (twice, {"text": "one"}),
    (fails, {"text": "a"}),
    (fails, {"text": "b"}),
]


async def outcome(run: Any) -> Any:
    try:
        found = await run
    except (InvalidInput, StepFailed) as error:
        cause = getattr(error, "cause", error)  # Ray's wraps it
        return [type(cause).__name__, str(cause), getattr(cause, "step", None)]
    return json.loads(json.dumps(found, default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else asdict(value)


async def here(url: str) -> list[Any]:
    async with AsyncClient(url) as client:
        return [await outcome(one.run(client, **given)) for one, given in RUNS]


def on_ray(url: str) -> list[Any]:
    import ray
    from ray import serve

    from embedline.pipelines.on_ray import application

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(proxy_location="Disabled")
    few = {"ray_actor_options": {"num_cpus": 0.1}}
    options = {name: few for name in ("embed", "index", "retrieve", "cut", "both", "missing")}
    handles = {}
    for one in (search, twice, fails):
        own = {node.work.name: options[node.work.name] for node in one.graph.nodes if node.work} | {one.name: few}
        app = application(one, client=partial(AsyncClient, url), options=own)
        handles[one] = serve.run(app, name=one.name, route_prefix=None)

    async def run_all() -> list[Any]:
        return [await outcome(handles[one].remote(**given)) for one, given in RUNS]

    try:
        return asyncio.run(run_all())
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    placed = importlib.import_module("placed")  # as an application's is: no other process can import __main__
    url, file = sys.argv[1:]
    Path(file).write_text(json.dumps([asyncio.run(placed.here(url)), placed.on_ray(url)]))
