"""Workers whose answers the test gives, over real sockets. Each text is a number and its only id, or its only token;
the text of ids is their sum."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.server_e2e.running import PATIENCE
from tokenizer_pool import messages
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import (
    BY_KIND,
    CODECS,
    AnyAnswer,
    DecodePiece,
    DetailedPiece,
    DetailPiece,
    ScannedPiece,
    ScanPiece,
    TextsPiece,
    Token,
    TokenizedTexts,
)
from wire.connection import FrameConnection, Link, serve
from wire.vocabulary import RequestClass

Result = TypeVar("Result")

MAX_SEQLEN = 256
MANY = [str(number) for number in range(2048)]


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something is so."""
    while not condition():  # noqa: ASYNC110 - what is waited for is another object's state, which has no event
        await asyncio.sleep(0)


def num_live(pool: TokenizerPool) -> int:
    """Workers that can answer now."""
    return sum(worker.is_live for worker in pool._workers)


@dataclass(frozen=True, eq=False)
class Asked:
    """A piece that waits for the test to answer it."""

    piece: Any  # of any task
    connection: FrameConnection
    frame_id: int

    def answer(self) -> None:
        codec = CODECS[type(self.piece)]
        seconds = 1e-6 * (self.piece.num_chars + 20 * self.piece.num_items)  # as the client guesses at first
        self.connection.send(codec.answered, self.frame_id, codec.encode_answer(answer_to(self.piece, seconds)))

    def refuse(self, refused: TextRefused) -> None:
        self.connection.send(messages.REFUSED, self.frame_id, messages.encode_refused(refused))


def answer_to(piece: Any, seconds: float) -> AnyAnswer:
    """What a piece of any task is answered with."""
    if isinstance(piece, DecodePiece):
        bounds = pairwise(piece.offsets.tolist())
        return TextsPiece([str(piece.token_ids[start:stop].sum()) for start, stop in bounds], seconds)
    if isinstance(piece, ScanPiece):
        num_tokens = len(piece.text)
        return ScannedPiece(num_tokens, 0 if piece.is_end else num_tokens, 0, seconds)
    ids = [int(text[-9:]) for text in piece.texts]
    if isinstance(piece, DetailPiece):
        return DetailedPiece([[Token(number, str(number), False, 0, 1)] for number in ids], seconds)
    offsets = np.arange(len(ids) + 1, dtype=np.int32)
    return TokenizedTexts(np.array(ids, np.int32), offsets, np.zeros(len(ids), np.uint8), seconds=seconds)


class ScriptedWorker:
    """Listens, takes note of what it is asked, and dies when told to; its socket stays."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: asyncio.Queue[Asked] = asyncio.Queue()
        self.is_started = True  # says READY to whoever connects
        self._connections: set[FrameConnection] = set()

    async def listen(self) -> asyncio.Server:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        return await serve(listener, self._received, self._accepted, self._connections.discard)

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        """Come back from the dead."""
        self.is_started = True
        for connection in self._connections:
            connection.send(messages.READY, 0)

    def die(self, *, restart: bool = True) -> list[Asked]:
        """Drop the connections and what was asked, which is returned."""
        self.is_started = restart
        for connection in list(self._connections):
            connection.close()
        return [self.asked.get_nowait() for _ in range(self.asked.qsize())]

    def _accepted(self, connection: FrameConnection) -> None:
        self._connections.add(connection)
        if self.is_started:
            connection.send(messages.READY, 0)

    def _received(self, connection: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        self.asked.put_nowait(Asked(BY_KIND[kind].decode_piece(payload), connection, frame_id))


@asynccontextmanager
async def scripted_pool(
    num_workers: int, *, started: bool = True
) -> AsyncIterator[tuple[TokenizerPool, list[ScriptedWorker]]]:
    """A pool and its workers."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [ScriptedWorker(f"{folder}/{index}.sock") for index in range(num_workers)]
        servers = []
        for worker in workers:
            worker.is_started = started
            servers.append(await worker.listen())
        pool = TokenizerPool([partial(Link, worker.path) for worker in workers], max_seqlens=[MAX_SEQLEN])
        pool.open()
        await until(lambda: num_live(pool) == (num_workers if started else 0))
        try:
            yield pool, workers
        finally:
            pool.close()
            for worker, server in zip(workers, servers, strict=True):
                server.close()
                worker.die()
            await until(lambda: not any(worker.num_connections for worker in workers))


def ask(
    pool: TokenizerPool,
    texts: Sequence[str],
    request_class: RequestClass = RequestClass.INTERACTIVE,
    *,
    truncation: Truncation = Truncation.RIGHT,
) -> asyncio.Task[TokenizedTexts]:
    request = pool.tokenize(texts, model=0, request_class=request_class, truncation=truncation)
    return asyncio.get_running_loop().create_task(request)


async def answer_all(workers: Sequence[ScriptedWorker], request: asyncio.Task[Result]) -> Result:
    """Answer whatever is asked, newest first, until the request is done."""
    while not request.done():
        for worker in workers:
            asked = [worker.asked.get_nowait() for _ in range(worker.asked.qsize())]
            for one in reversed(asked):
                one.answer()
        await asyncio.sleep(0)
    return await request


def numbers(asked: Asked) -> list[int]:
    return [int(text) for text in asked.piece.texts]


async def refusal_of(asked: Awaitable[object]) -> tuple[TextRefusal, int]:
    with pytest.raises(TextRefused) as caught:
        await asyncio.wait_for(asked, PATIENCE)
    return caught.value.reason, caught.value.index
