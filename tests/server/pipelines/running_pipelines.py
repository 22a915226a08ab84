"""Pipelines that end in every way, in a service on a Unix socket with a frontend's client."""

import asyncio
import contextlib
import json
import math
import socket
import time
from collections.abc import AsyncIterator, Callable
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
async def unsendable(text: str) -> str:
    return object()  # type: ignore[return-value]


@step
async def endless(text: str) -> str:
    found: list[Any] = []
    found.append(found)
    return found  # type: ignore[return-value]


@pipeline
def search(text: str, scores: Rows, limit: int = 2) -> list[Hit]:
    """Found."""
    return hits(text, scores, limit)


@pipeline
def arrays(rows: Rows) -> Rows:
    return doubled(rows)


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
    assert type(number) is np.float32
    return np.float32(2) * number


def _client_named(client: np.float32, self: str) -> np.float32:
    return twice(client, self)


_client_named.__name__ = "client_named"
client_named = pipeline(_client_named)


class Panic(BaseException):
    """As those of libraries in Rust."""


def raising(name: str, error: Callable[[str], BaseException]) -> Any:
    """A step that raises this, made of its text."""

    async def fail(text: str) -> str:
        raise error(text)

    fail.__name__ = name
    return step(fail)


def of_one_step(name: str, work: Any, **options: float) -> Any:
    """A pipeline that gives its text to this step."""

    def run(text: str) -> str:
        found: str = work(text)
        return found

    run.__name__ = name
    return pipeline(**options)(run)


OF_ONE_STEP = (
    of_one_step("waits", waiting, timeout=10.0),
    of_one_step("hangs", waiting, timeout=0.001),
    of_one_step("sends_nothing", unsendable),
    of_one_step("holds_itself", endless),
    of_one_step("fails", raising("failing", KeyError)),
    of_one_step("panics", raising("panicking", Panic)),
    of_one_step("leaves", raising("leaving", lambda _: GeneratorExit())),
    of_one_step("repeats", raising("repeating", InvalidInput)),
    of_one_step("refuses", raising("refusing", lambda _: InvalidInput("no index for this tenant"))),
    of_one_step("refuses_unsendably", raising("refusing_unsendably", lambda _: InvalidInput("no index \ud800"))),
    of_one_step(
        "too_busy",
        raising("busy", lambda _: RequestFailed("busy", request="", status=429, start=0, stop=1, attempts=[])),
    ),
)
ALL: tuple[Any, ...] = (search, arrays, picks, client_named, *OF_ONE_STEP)


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
