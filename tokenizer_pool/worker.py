"""A tokenizer worker: `python -P -m tokenizer_pool.worker <control fd> <supervisor pid>`.

Takes pieces from frontends, tokenizes them one at a time and answers. Knows nothing of whole requests.
START carries "listener_fd", "models" (names) and "tokenizers" (a TokenizerSpec as a dict for each model).
"""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from tokenizer_pool import messages
from tokenizer_pool.loading import TokenizerError
from tokenizer_pool.messages import Piece, TextRefused, TokenizedPiece
from tokenizer_pool.queue import PieceQueue
from tokenizer_pool.tokenizer import Tokenizer, TokenizerSpec
from wire import child
from wire.child import Child, StartError
from wire.connection import Connection, serve
from wire.metrics import Recorder


class _Asked(NamedTuple):
    """A piece and whom to answer."""

    piece: Piece
    connection: Connection
    frame_id: int


class Worker:
    """Runs one piece after the other, and reads what has arrived in between.

    So a query waits for the piece that runs and never for those that wait, which are behind it in the queue.
    """

    def __init__(self, tokenizers: Sequence[Tokenizer], *, models: Sequence[str], metrics: Recorder) -> None:
        self._tokenizers = tokenizers
        self._models = models
        self._metrics = metrics
        self._queue: PieceQueue[_Asked] = PieceQueue()
        self._connections: set[Connection] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._alone = asyncio.Event()
        self._alone.set()
        self._loop = asyncio.get_running_loop()

    def accepted(self, connection: Connection) -> None:
        """A frontend has connected."""
        self._connections.add(connection)
        self._alone.clear()
        connection.send(messages.READY, 0)

    def received(self, connection: Connection, kind: int, frame_id: int, payload: memoryview) -> None:
        """A frontend asks for ids."""
        assert kind == messages.TOKENIZE
        piece = messages.decode_piece(payload)
        self._queue.push(_Asked(piece, connection, frame_id), piece.request_class, owner=connection)
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._run_one)

    def lost(self, connection: Connection) -> None:
        """A frontend is gone, and with it whoever wanted what it asked for."""
        self._connections.discard(connection)
        self._queue.drop(connection)
        if not self._connections:
            self._alone.set()

    async def finish(self) -> None:
        """Answer what waits, then hang up."""
        await self._idle.wait()
        for connection in self._connections:
            connection.close()
        await self._alone.wait()

    def _run_one(self) -> None:
        if self._queue:
            self._answer(self._queue.pop())
        if self._queue:
            # Twice, because a loop polls its sockets before it runs what is ready: the first tick sends this answer
            # and reads what has come, and only then the next piece is chosen.
            self._loop.call_soon(self._loop.call_soon, self._run_one)
        else:
            self._idle.set()

    def _answer(self, asked: _Asked) -> None:
        piece = asked.piece
        start = time.perf_counter()
        try:
            tokenized = self._tokenizers[piece.model].encode(
                piece.texts, prompt=piece.prompt, truncation=piece.truncation
            )
        except TextRefused as refused:
            asked.connection.send(messages.REFUSED, asked.frame_id, messages.encode_refused(refused))
        else:
            asked.connection.send(messages.TOKENIZED, asked.frame_id, messages.encode_tokenized(tokenized))
            self._count(piece.model, tokenized)
        self._queue.spent(piece.request_class, time.perf_counter() - start)

    def _count(self, model: int, tokenized: TokenizedPiece) -> None:
        name = self._models[model]
        self._metrics.count("embedline_tokenized_texts_total", name, by=len(tokenized.truncated))
        self._metrics.count("embedline_tokenized_tokens_total", name, by=len(tokenized.token_ids))
        self._metrics.count("embedline_tokenize_seconds_total", name, by=tokenized.seconds)


async def serve_frontends(child: Child) -> None:
    """The role. Raises StartError where a model folder has no usable tokenizer."""
    # One piece on one core: the pool is the parallelism, and the library's own threads would fight it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizers = [_load(TokenizerSpec(**fields)) for fields in child.spec["tokenizers"]]
    worker = Worker(tokenizers, models=child.spec["models"], metrics=child.metrics)
    listener = socket.socket(fileno=child.spec["listener_fd"])
    server = await serve(listener, worker.received, worker.accepted, worker.lost)
    child.ready()
    await child.stopping.wait()
    server.close()
    await worker.finish()


def _load(spec: TokenizerSpec) -> Tokenizer:
    """A tokenizer that has worked once."""
    try:
        tokenizer = Tokenizer(spec)
        tokenizer.encode(["warm up"])
    except TokenizerError as error:
        raise StartError(str(error)) from None
    except TextRefused as refused:
        raise StartError(f"{spec.folder}: the tokenizer can't take a plain text ({refused.reason.name})") from None
    return tokenizer


if __name__ == "__main__":
    child.run(serve_frontends)
