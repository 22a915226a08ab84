"""The real role of the batch manager's process on real Unix sockets, between a scripted engine and a scripted
frontend, all on one event loop."""

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from batch_manager import messages
from batch_manager.messages import (
    EngineAddress,
    ManagerStart,
    Policy,
    RequestRefusal,
    RequestRefused,
    RequestResults,
    Submission,
)
from batch_manager.worker import serve
from engine import messages as engine_messages
from engine.types import Batch, EngineError, EngineErrorKind, EngineLimits, ModelInfo, OutputKind, Results, Rows
from tests.server_e2e.running import PATIENCE
from wire import connection
from wire.child import Child
from wire.connection import FrameConnection
from wire.control import ProcessStart
from wire.frames import Buffer
from wire.page import Page
from wire.parts import Part
from wire.vocabulary import RequestClass

Run = Callable[[Coroutine[Any, Any, None]], None]

INFO = ModelInfo(
    name="tiny",
    engine="scripted",
    reason="",
    outputs=OutputKind.POOLED | OutputKind.TOKENS,
    dimensions=4,
    max_seqlen=100,
    vocab_size=30_000,
    pooling="mean",
    normalize=False,
    dtype="float32",
    device="cpu",
    architecture="",
)
LIMITS = EngineLimits(max_num_tokens=100, max_num_seqs=16, max_seqlen=100)


def ids_of(*seqlens: int, first: int = 1) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Ids that differ from token to token."""
    return np.arange(first, first + sum(seqlens), dtype=np.int32)


def submission(
    *seqlens: int,
    first: int = 1,
    outputs: OutputKind = OutputKind.POOLED,
    request_class: RequestClass = RequestClass.INTERACTIVE,
    deadline: float = float("inf"),
) -> Submission:
    """A request of such sequences whose ids count up from `first`."""
    ids = ids_of(*seqlens, first=first).tobytes()
    return Submission(0, request_class, outputs, deadline, seqlens, ids)


def rows_of(batch: Batch) -> Results:
    """What the scripted engine computes: rows that name their ids."""
    ids = batch.token_ids.astype(np.float32)
    zeros = np.zeros(len(batch.token_ids), np.int32)
    types = (zeros if batch.token_type_ids is None else batch.token_type_ids).astype(np.float32)
    bounds = itertools.pairwise(batch.cu_seqlens)
    results = {}
    if OutputKind.POOLED in batch.outputs:
        rows = [[ids[a], ids[b - 1], b - a, types[a:b].sum()] for a, b in bounds]
        results[OutputKind.POOLED] = Rows(np.array(rows, np.float32))
    if OutputKind.TOKENS in batch.outputs:
        results[OutputKind.TOKENS] = Rows(np.stack([ids, -ids], axis=1), batch.cu_seqlens)
    return results


def expected(one: Submission) -> Results:
    """What the request's answer must be."""
    ids = np.frombuffer(one.token_ids, np.int32)
    types = one.parts.get(Part.TOKEN_TYPE_IDS)
    cu_seqlens = np.cumsum([0, *one.seqlens], dtype=np.int32)
    return rows_of(
        Batch("tiny", one.outputs, ids, cu_seqlens, None if types is None else np.frombuffer(types, np.int32))
    )


def assert_same(answer: RequestResults | RequestRefused, wanted: Results) -> None:
    """The rows are these to the bit."""
    assert isinstance(answer, RequestResults)
    assert set(answer.results) == set(wanted)
    for kind, rows in wanted.items():
        np.testing.assert_array_equal(answer.results[kind].values, rows.values)
        if rows.offsets is None:
            assert answer.results[kind].offsets is None
        else:
            np.testing.assert_array_equal(answer.results[kind].offsets, rows.offsets)


def refusal(outcome: RequestResults | RequestRefused) -> tuple[RequestRefusal, int]:
    """Why, and which sequence is to blame."""
    assert isinstance(outcome, RequestRefused)
    return outcome.reason, outcome.index


async def until(condition: Callable[[], bool]) -> None:
    """Let everything on the loop go on until this holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for is in shared memory, or in a peer
        await asyncio.sleep(0)


class Engine:
    """A scripted engine worker: batches wait in `batches` until the test answers them, or it answers by itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.limits = LIMITS
        self.compute: Callable[[Batch], Results] = rows_of
        self.is_automatic = False
        self.num_batches = 0
        self.was_served_well = True  # every frame was a whole batch
        self.canary: EngineErrorKind | None = None  # how it fails canaries; None = it passes
        self.num_canaries = 0
        self.was_told_to_exit = asyncio.Event()
        self.batches: asyncio.Queue[tuple[int, Batch]] = asyncio.Queue()
        self.connections: list[FrameConnection] = []
        self._server: asyncio.Server | None = None
        self._script: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        self._server = await connection.serve(listener, self._received, self._made, self.connections.remove)

    def close(self) -> None:
        """Go away for good."""
        if self._script is not None:
            self._script.cancel()
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Lose the connection, as a process that dies does."""
        while not self.batches.empty():
            self.batches.get_nowait()
        for one in list(self.connections):
            one.close()

    def answer(self, frame_id: int, results: Results, seconds: float = 0.001) -> None:
        """Rows for a batch."""
        self.send(engine_messages.RESULT, frame_id, engine_messages.encode_result(results, seconds))

    async def answer_next(self, seconds: float = 0.001) -> Batch:
        """Rows for the batch that comes next, which is returned."""
        frame_id, batch = await self.batches.get()
        self.answer(frame_id, self.compute(batch), seconds)
        return batch

    def fail(self, frame_id: int, kind: EngineErrorKind) -> None:
        """No rows for a batch."""
        self.send(engine_messages.FAILED, frame_id, engine_messages.encode_failed(EngineError(kind, "as told")))

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer]) -> None:
        """Any frame."""
        self.connections[-1].send(kind, frame_id, parts)

    def script(self, act: Callable[[int, Batch], None], *, token_id: int | None = None) -> "asyncio.Task[None]":
        """From now on do this with each batch, or with those that hold this id, and answer the others."""

        async def go_on() -> None:
            while True:
                frame_id, batch = await self.batches.get()
                if token_id is None or token_id in batch.token_ids:
                    act(frame_id, batch)
                else:
                    self.answer(frame_id, self.compute(batch))

        self._script = asyncio.create_task(go_on())
        return self._script

    def _made(self, one: FrameConnection) -> None:
        self.connections.append(one)
        one.send(engine_messages.READY, 0, engine_messages.encode_ready(INFO, self.limits))

    def _received(self, _: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == engine_messages.CANARY:
            self.num_canaries += 1
            self.answer(frame_id, {}) if self.canary is None else self.fail(frame_id, self.canary)
            return
        if kind == engine_messages.EXIT:
            self.was_told_to_exit.set()
            return
        batch = engine_messages.decode_batch("tiny", payload)
        types = batch.token_ids if batch.token_type_ids is None else batch.token_type_ids
        sizes = {int(batch.cu_seqlens[-1]), len(batch.token_ids), len(types)}
        self.was_served_well &= kind == engine_messages.BATCH and len(sizes) == 1
        self.num_batches += 1
        if self.is_automatic:
            self.answer(frame_id, self.compute(batch))
        else:
            self.batches.put_nowait((frame_id, batch))


class Frontend:
    """A scripted frontend."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = asyncio.Event()
        self.connection = FrameConnection(self._received, lambda _: self.lost.set())
        self._answers: dict[int, asyncio.Future[RequestResults | RequestRefused]] = {}
        self._num_requests = 0

    async def open(self) -> "Frontend":
        """Connect."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self.connection, str(self.path))
        return self

    def submit(self, one: Submission) -> "asyncio.Future[RequestResults | RequestRefused]":
        """Send a request; its answer or refusal comes as the result."""
        self._num_requests += 1
        future = self._answers[self._num_requests] = asyncio.get_running_loop().create_future()
        self.connection.send(messages.SUBMIT, self._num_requests, messages.encode_submission(one))
        return future

    async def ask(self, one: Submission) -> RequestResults | RequestRefused:
        """Send a request and wait."""
        return await self.submit(one)

    def cancel(self, frame_id: int) -> None:
        """Nobody waits for that request any more."""
        self.connection.send(messages.CANCEL, frame_id)

    def _received(self, _: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        answer = messages.decode_answer(payload) if kind == messages.ANSWER else messages.decode_refused(payload)
        self._answers.pop(frame_id).set_result(answer)


class ManagerRole:
    """A batch manager with scripted engines."""

    def __init__(self, folder: Path, num_engines: int, policy: Policy, page: Page | None, index: int) -> None:
        self.path = folder / "manager"
        self.page = page or Page.create(num_frontends=1, num_managers=2, num_models=1)
        self.engines = [Engine(folder / f"engine {at}") for at in range(num_engines)]
        self.child = Child()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.child.process = ProcessStart(title=f"batch manager {index}", index=index, log_level="info")
        self.start = ManagerStart(
            listener_fd=os.dup(self.listener.fileno()),
            page_fd=self.page.fd,
            models=["tiny"],
            engines=[EngineAddress(str(engine.path), 0, at) for at, engine in enumerate(self.engines)],
            policy=policy,
        )

    @property
    def engine(self) -> Engine:
        """The first engine."""
        return self.engines[0]

    async def frontend(self) -> Frontend:
        """A new frontend, connected."""
        return await Frontend(self.path).open()


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    *,
    num_engines: int = 1,
    has_engines: bool = True,
    page: Page | None = None,
    index: int = 1,
    **policy: Any,
) -> AsyncIterator[ManagerRole]:
    """The batch manager's role between these peers. On leaving it is told to stop and must come to an end."""
    async with asyncio.timeout(PATIENCE):
        manager = ManagerRole(folder, num_engines, Policy(**policy), page, index)
        if has_engines:
            for engine in manager.engines:
                await engine.open()
        role = asyncio.create_task(serve(manager.child, manager.start))
        try:
            yield manager
            manager.child.stopping.set()
            await role
            assert all(engine.was_served_well for engine in manager.engines)
        finally:
            role.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await role
            for engine in manager.engines:
                engine.close()
            manager.listener.close()
            await asyncio.sleep(0)
