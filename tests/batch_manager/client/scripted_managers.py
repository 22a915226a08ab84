"""Scripted batch managers behind real sockets, and a frontend's side that is connected to them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import numpy as np

from batch_manager import messages
from batch_manager.client import BatchManagers
from batch_manager.messages import RequestRefusal, RequestRefused, RequestResults, Submission
from engine.types import OutputKind, Rows
from tests.server_e2e.running import PATIENCE
from wire.connection import FrameConnection, Link, serve
from wire.frames import Buffer
from wire.page import Page


class Manager:
    """A scripted batch manager behind a listening socket that outlives it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.submitted: asyncio.Queue[tuple[int, Submission]] = asyncio.Queue()
        self.cancelled: asyncio.Queue[int] = asyncio.Queue()
        self.refuted: asyncio.Queue[int] = asyncio.Queue()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._connections: list[FrameConnection] = []
        self._gone = asyncio.Event()

    async def start(self) -> None:
        self._server = await serve(self._listener.dup(), self._received, self._connections.append, self._lost)

    async def die(self) -> None:
        """Lose every connection, as a killed process does; the listening socket stays."""
        self._server.close()
        self._gone.clear()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            await self._gone.wait()

    async def close(self) -> None:
        await self.die()
        self._listener.close()

    def answer(self, request_id: int, row: float, *, has_joined: bool = False) -> None:
        rows = Rows(np.full((1, 2), row, np.float32))
        parts = messages.encode_answer(RequestResults({OutputKind.POOLED: rows}, 0.0, 0.0, has_joined))
        self._connections[-1].send(messages.ANSWER, request_id, parts)

    def refuse(self, request_id: int, reason: RequestRefusal) -> None:
        self.send(messages.REFUSED, request_id, messages.encode_refused(RequestRefused(reason)))

    def send(self, kind: int, request_id: int, parts: list[Buffer]) -> None:
        self._connections[-1].send(kind, request_id, parts)

    def _received(self, _: FrameConnection, kind: int, request_id: int, payload: memoryview) -> None:
        if kind == messages.SUBMIT:
            self.submitted.put_nowait((request_id, messages.decode_submission(payload)))
        elif kind == messages.REFUTED:
            self.refuted.put_nowait(messages.decode_refuted(payload))
        else:
            assert kind == messages.CANCEL
            self.cancelled.put_nowait(request_id)

    def _lost(self, connection: FrameConnection) -> None:
        self._connections.remove(connection)
        if not self._connections:
            self._gone.set()


@contextlib.asynccontextmanager
async def connected(folder: Path, num_managers: int = 1) -> AsyncIterator[tuple[BatchManagers, list[Manager], Page]]:
    managers = [Manager(folder / f"{index}.sock") for index in range(num_managers)]
    page = Page.create(num_frontends=1, num_managers=num_managers, num_models=1)
    for manager in managers:
        await manager.start()
    client = BatchManagers([(partial(Link, manager.path), (0,)) for manager in managers], page)
    client.open()
    try:
        async with asyncio.timeout(PATIENCE):
            yield client, managers, page
    finally:
        client.close()
        for manager in managers:
            await manager.close()
