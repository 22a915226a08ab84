"""Pipelines that end in every way, in a service on a Unix socket with a frontend's client."""

import asyncio
import contextlib
import json
import math
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedline import RequestFailed
from embedline.pipelines import InvalidInput, pipeline, step
from server.features.pipelines.main import Clients, Runs
from server.features.pipelines.messages import Run
from server.features.pipelines.routes import PipelinesClient
from server.features.rpc import Service
from wire.metrics import Recorder

Rows = NDArray[np.float32]
SECRET_TEXT = "my secret text"


@dataclass
class Hit:
    text: str
    score: float


class Gate:
    """Of steps that wait."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()


gates: list[Gate] = []


@step
async def hits(text: str, scores: Rows, limit: int) -> list[Hit]:
    return [Hit(text, float(score)) for score in scores[:limit]]


@step
async def doubled(rows: Rows) -> Rows:
    assert rows.dtype == np.float32
    return rows * 2


@step
async def waiting(text: str) -> str:
    gates[-1].began.set()
    try:
        await asyncio.Event().wait()
    finally:
        gates[-1].ended.set()
    return text


@step
async def failing(text: str) -> str:
    raise KeyError(text)


@step
async def refusing(text: str) -> str:
    raise InvalidInput("no index for this tenant")


@step
async def busy(text: str) -> str:
    raise RequestFailed("busy", request="", status=429, start=0, stop=1, attempts=[])


@step
async def unsendable(text: str) -> str:
    return object()  # type: ignore[return-value]


@pipeline
def search(text: str, scores: Rows, limit: int = 2) -> list[Hit]:
    """Found."""
    return hits(text, scores, limit)


@pipeline
def arrays(rows: Rows) -> Rows:
    return doubled(rows)


@pipeline(timeout=10.0)
def waits(text: str) -> str:
    return waiting(text)


@pipeline(timeout=0.001)
def hangs(text: str) -> str:
    return waiting(text)


@pipeline
def fails(text: str) -> str:
    return failing(text)


@pipeline
def refuses(text: str) -> str:
    return refusing(text)


@pipeline
def too_busy(text: str) -> str:
    return busy(text)


@pipeline
def sends_nothing(text: str) -> str:
    return unsendable(text)


class Panic(BaseException):
    """As those of libraries in Rust."""


@step
async def panicking(text: str) -> str:
    raise Panic(text)


@pipeline
def panics(text: str) -> str:
    return panicking(text)


@step
async def refusing_unsendably(text: str) -> str:
    raise InvalidInput("no index \ud800")


@pipeline
def refuses_unsendably(text: str) -> str:
    return refusing_unsendably(text)


@step
async def endless(text: str) -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pipeline
def holds_itself(text: str) -> list[Any]:
    return endless(text)


@dataclass
class Picky:
    text: str

    def __post_init__(self) -> None:
        raise KeyError(self.text)


@step
async def of_picky(one: Picky) -> str:
    return one.text


@pipeline
def picks(one: Picky) -> str:
    return of_picky(one)


@step
async def twice(number: np.float32, text: str) -> np.float32:
    return np.float32(2) * number


def _client_named(client: np.float32, self: str) -> np.float32:
    return twice(client, self)


_client_named.__name__ = "client_named"
client_named = pipeline(_client_named)


@step
async def leaving(text: str) -> str:
    raise GeneratorExit


@pipeline
def leaves(text: str) -> str:
    return leaving(text)


@step
async def repeating(text: str) -> str:
    raise InvalidInput(text)


@pipeline
def repeats(text: str) -> str:
    return repeating(text)


FAILING = (leaves, repeats, panics, refuses_unsendably, holds_itself, picks, client_named)
ALL: tuple[Any, ...] = (search, arrays, waits, hangs, fails, refuses, too_busy, sends_nothing, *FAILING)


class Process:
    """What runs in the pipelines process, in this one."""

    def __init__(self, folder: Path, most: int) -> None:
        self.metrics = Recorder()
        self.clients = Clients(str(folder / "http.sock"), "secret")
        self.runs = Runs({one.name: one for one in ALL}, self.clients, most=most, metrics=self.metrics)
        self.service = Service("pipelines", self.runs.answer, says=self.runs.listing(), cancels=True)


@contextlib.asynccontextmanager
async def connected(folder: Path, *, most: int = 4) -> AsyncIterator[tuple[PipelinesClient, Process]]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "runs.sock"))
    listener.listen()
    gates.append(Gate())
    process, client = Process(folder, most), PipelinesClient(str(folder / "runs.sock"))
    await process.service.start(listener)
    client.open()
    try:
        yield client, process
    finally:
        client.close()
        await process.service.stop()
        process.clients.close()
        await asyncio.sleep(0)  # sockets close at the end of a tick


async def run(client: PipelinesClient, name: str, body: Any = None, *, seconds: float = math.inf) -> Any:
    given = body if isinstance(body, bytes) else json.dumps({"text": SECRET_TEXT} if body is None else body).encode()
    return json.loads(await client.run(Run(name, "", None, given), time.monotonic() + seconds))
