"""A worker in the test's own process: over a tokenizer that takes notes, asked by frontends that never wait."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from tests.tokenizer_pool.scripted import num_live, until
from tokenizer_pool import messages
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, TokenizerStart, Truncation
from tokenizer_pool.tasks import TokenizedTexts, TokenizePiece, encode_tokenize
from tokenizer_pool.tokenizer import Tokenizer
from tokenizer_pool.worker import Worker, serve_frontends
from wire import frames
from wire.child import Child
from wire.connection import Link, serve
from wire.control import Json
from wire.frames import FrameParser
from wire.metrics import Recorder
from wire.vocabulary import RequestClass


class SpyTokenizer:
    """Takes note of what it is asked, in order. While it runs nothing else does: the test acts in `during`."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.during: dict[str, Callable[[], object]] = {}

    def encode(
        self, texts: Sequence[str], *, prompt: str, truncation: Truncation, pair_texts: Sequence[str], **_: object
    ) -> TokenizedTexts:
        self.taken += texts
        self.during.pop(texts[0], lambda: None)()
        if texts[0].startswith("bad"):
            raise TextRefused(TextRefusal.FAILED, 0)
        count = len(texts)
        return TokenizedTexts(
            np.arange(count, dtype=np.int32), np.arange(count + 1, dtype=np.int32), np.zeros(count, np.uint8)
        )


class RawFrontend:
    """A frontend on a plain socket, which can speak while the worker's loop is busy."""

    def __init__(self, path: str) -> None:
        self.received: list[tuple[int, int]] = []  # kind, frame id
        self._parser = FrameParser(lambda kind, frame_id, _: self.received.append((kind, frame_id)))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.setblocking(False)
        self._socket.sendall(b"".join(frames.hello()))

    def ask(self, frame_id: int, text: str, request_class: RequestClass, *, prompt: str = "") -> None:
        payload = encode_tokenize(TokenizePiece(0, request_class, Truncation.RIGHT, [text], prompt))
        self._socket.sendall(b"".join(frames.frame(messages.TOKENIZE, frame_id, payload)))

    def read(self) -> list[tuple[int, int]]:
        """Everything that has been answered so far."""
        with contextlib.suppress(BlockingIOError):
            while num_bytes := self._socket.recv_into(self._parser.writable()):
                self._parser.advance(num_bytes)
        return self.received

    def leave(self) -> None:
        self._socket.close()


class Bench:
    """A worker over a spy, on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "worker.sock")
        self.spy = SpyTokenizer()
        self.worker = Worker([cast(Tokenizer, self.spy)], models=["spy"], metrics=Recorder())
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._frontends: list[RawFrontend] = []

    async def __aenter__(self) -> "Bench":
        worker = self.worker
        self._server = await serve(self._listener, worker.received, worker.accepted, worker.lost)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for frontend in self._frontends:
            frontend.leave()
        await self.worker.finish()

    async def frontend(self) -> RawFrontend:
        frontend = RawFrontend(self.path)
        self._frontends.append(frontend)
        await until(lambda: (messages.READY, 0) in frontend.read())
        await asyncio.sleep(0)  # the worker reads from it
        return frontend


class FakeChild(Child):
    """A child without a supervisor."""

    is_ready = False

    def ready(self, info: Json | None = None) -> None:
        self.is_ready = True


def start_of(folder: Path, *specs: TokenizerSpec) -> TokenizerStart:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "worker.sock"))
    names = [f"model {index}" for index in range(len(specs))]
    return TokenizerStart(listener_fd=listener.detach(), models=names, tokenizers=list(specs))


@contextlib.asynccontextmanager
async def serving(folder: Path, *specs: TokenizerSpec) -> AsyncIterator[tuple[TokenizerPool, Child]]:
    """The real role, in this process, and a pool of this one worker."""
    child = FakeChild()
    role = asyncio.ensure_future(serve_frontends(child, start_of(folder, *specs)))
    pool = TokenizerPool([partial(Link, str(folder / "worker.sock"))], max_seqlens=[spec.max_seqlen for spec in specs])
    pool.open()
    try:
        yield pool, child
        child.stopping.set()
        await role
        await until(lambda: num_live(pool) == 0)
    finally:
        role.cancel()
        pool.close()
