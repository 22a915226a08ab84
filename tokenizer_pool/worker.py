"""A tokenizer worker: `python -P -m tokenizer_pool.worker <control fd> <supervisor pid>`.

Takes pieces from frontends, tokenizes them one at a time and answers. Knows nothing of whole requests. With
`--tokenization-workers 0` there is no such process, and each frontend has a worker of its own on its event loop.
"""

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tokenizer_pool import messages
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, TokenizerStart
from tokenizer_pool.shortening import LONG_TEXT_CHARS
from tokenizer_pool.tasks import (
    BY_KIND,
    CODECS,
    AnyAnswer,
    AnyPiece,
    ChatPiece,
    DetailPiece,
    ScannedPiece,
    ScanPiece,
    TextsPiece,
    TokenizePiece,
)
from tokenizer_pool.tokenizer import Tokenizer
from wire import child
from wire.child import Child, StartError
from wire.connection import FrameConnection, serve
from wire.frames import PayloadTooLarge
from wire.metrics import Recorder
from wire.tokenizer_files import TokenizerError
from wire.vocabulary import RequestClass

# Interactive work goes first, but after this much of it a bulk piece that waits gets its turn: with
# pieces of 5 ms bulk keeps a fifth of a worker that interactive work alone would fill.
MAX_STRETCH_SECONDS = 0.020

# A piece of more is mostly a single long text, and seconds without a heartbeat would look stuck.
MAX_CHARS_ON_LOOP = LONG_TEXT_CHARS

# Heartbeats go on while a long text runs, so it is for the worker itself to see that it will not end. The longest
# texts of the longest models take some seconds.
_MAX_SECONDS = 120.0

logger = logging.getLogger("embedline.tokenizer_pool")


class QueuedPiece(NamedTuple):
    """A piece and whom to answer."""

    piece: AnyPiece
    connection: FrameConnection
    frame_id: int


class Worker:
    """Runs one piece after the other, and reads what has arrived in between.

    So a query waits for the piece that runs and never for those that wait, which are behind it in the queue.
    A long text runs in a thread, where it does not keep the process from its heartbeat; it is still the only one.
    """

    def __init__(self, tokenizers: Sequence[Tokenizer], *, models: Sequence[str], metrics: Recorder) -> None:
        self._tokenizers = tokenizers
        self._models = models
        self._metrics = metrics
        self._queue = PieceQueue()
        self._connections: set[FrameConnection] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._alone = asyncio.Event()
        self._alone.set()
        self._loop = asyncio.get_running_loop()

    def accepted(self, connection: FrameConnection) -> None:
        """A frontend has connected."""
        self._connections.add(connection)
        self._alone.clear()
        connection.send(messages.READY, 0)

    def received(self, connection: FrameConnection, kind: int, frame_id: int, payload: memoryview) -> None:
        """A frontend asks for something."""
        self._queue.push(QueuedPiece(BY_KIND[kind].decode_piece(payload), connection, frame_id))
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._run_one)

    def lost(self, connection: FrameConnection) -> None:
        """A frontend is gone, and its requests with it."""
        self._connections.discard(connection)
        self._queue.drop(connection)
        if not self._connections:
            self._alone.set()

    def holds(self) -> dict[str, int]:
        """The work that waits here, for an operator who asks."""
        return {"pieces": len(self._queue), "frontends": len(self._connections)}

    async def finish(self) -> None:
        """Answer what waits, then hang up."""
        await self._idle.wait()
        for connection in self._connections:
            connection.close()
        await self._alone.wait()

    def _run_one(self) -> None:
        if not self._queue:  # the frontend has left
            self._idle.set()
            return
        asked = self._queue.pop()
        work = partial(_do, self._tokenizers[asked.piece.model], asked.piece)
        start = time.perf_counter()
        if asked.piece.num_chars <= MAX_CHARS_ON_LOOP:
            self._answer(asked, work, start)
            return
        stuck = self._loop.call_later(_MAX_SECONDS, _give_up)
        running = self._loop.run_in_executor(None, work)
        running.add_done_callback(lambda _: stuck.cancel())
        running.add_done_callback(lambda done: self._answer(asked, done.result, start))

    def _answer(self, asked: QueuedPiece, result: Callable[[], AnyAnswer], start: float) -> None:
        """Send what `result` returns or raises, and go on to the next piece."""
        piece = asked.piece
        try:
            answer = result()
            self._send(asked, answer)
        except TextRefused as refused:
            asked.connection.send(messages.REFUSED, asked.frame_id, messages.encode_refused(refused))
        except BaseException:  # or what waits would wait for ever: a frontend that has this worker goes on after errors
            logger.critical("an error that is not a text's: this process ends", exc_info=True)
            os._exit(1)
        else:
            self._count(piece.model, answer)
        self._queue.spent(piece.request_class, time.perf_counter() - start)
        if self._queue:
            # Twice, because a loop polls its sockets before it runs what is ready: the first tick sends this answer
            # and reads what has come, and only then the next piece is chosen.
            self._loop.call_soon(self._loop.call_soon, self._run_one)
        else:
            self._idle.set()

    def _send(self, asked: QueuedPiece, answer: AnyAnswer) -> None:
        codec = CODECS[type(asked.piece)]
        try:
            asked.connection.send(codec.answered, asked.frame_id, codec.encode_answer(answer))
        except PayloadTooLarge as error:
            logger.error("an answer can't be sent: %s", error)
            raise TextRefused(TextRefusal.TOO_MUCH, -1) from None

    def _count(self, model: int, answer: AnyAnswer) -> None:
        if isinstance(answer, TextsPiece | ScannedPiece):
            return
        name = self._models[model]
        self._metrics.count("embedline_tokenized_texts_total", name, by=answer.num_items)
        self._metrics.count("embedline_tokenized_tokens_total", name, by=answer.num_tokens)
        self._metrics.count("embedline_tokenize_seconds_total", name, by=answer.seconds)


class PieceQueue:
    """The order in which a worker takes the pieces that wait in it: interactive before bulk, first come first served
    inside a class, and bulk is never starved.

    The caller takes a piece with `pop`, runs it to its end and says with `spent` what it took.
    """

    def __init__(self) -> None:
        self._interactive: deque[QueuedPiece] = deque()
        self._bulk: deque[QueuedPiece] = deque()
        self._stretch = 0.0  # seconds of interactive work since a bulk piece had its turn or none waited

    def __len__(self) -> int:
        return len(self._interactive) + len(self._bulk)

    def push(self, asked: QueuedPiece) -> None:
        """Let a piece wait."""
        is_bulk = asked.piece.request_class is RequestClass.BULK
        (self._bulk if is_bulk else self._interactive).append(asked)

    def pop(self) -> QueuedPiece:
        """The piece to run now. The queue must not be empty."""
        bulk_is_due = self._stretch >= MAX_STRETCH_SECONDS or not self._interactive
        return (self._bulk if self._bulk and bulk_is_due else self._interactive).popleft()

    def spent(self, request_class: RequestClass, seconds: float) -> None:
        """Take note of how long the piece popped last has run."""
        if request_class is RequestClass.INTERACTIVE and self._bulk:
            self._stretch += seconds
        else:
            self._stretch = 0.0

    def drop(self, connection: FrameConnection) -> None:
        """Forget what waits for a frontend that is gone."""
        self._interactive = deque(asked for asked in self._interactive if asked.connection is not connection)
        self._bulk = deque(asked for asked in self._bulk if asked.connection is not connection)


async def listen(start: TokenizerStart, metrics: Recorder) -> tuple[Worker, asyncio.Server]:
    """A worker on this event loop, and the server that accepts its frontends. Raises StartError where a model folder
    has no usable tokenizer.
    """
    # One piece on one core: the pool is the parallelism, and the library's own threads would fight it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    worker = Worker([_load(spec) for spec in start.tokenizers], models=start.models, metrics=metrics)
    listener = socket.socket(fileno=start.listener_fd)
    return worker, await serve(listener, worker.received, worker.accepted, worker.lost)


async def serve_frontends(child: Child, start: TokenizerStart) -> None:
    """The role. Raises StartError."""
    worker, server = await listen(start, child.metrics)
    child.holds = worker.holds
    child.ready()
    await child.stopping.wait()
    server.close()
    await worker.finish()


def _do(tokenizer: Tokenizer, piece: AnyPiece) -> AnyAnswer:
    """Raises TextRefused."""
    if isinstance(piece, TokenizePiece):
        return tokenizer.encode(
            piece.texts,
            prompt=piece.prompt,
            truncation=piece.truncation,
            pair_texts=piece.pair_texts,
            max_tokens=piece.max_tokens,
            add_special_tokens=piece.add_special_tokens,
            is_prompted=piece.is_prompted,
        )
    if isinstance(piece, DetailPiece):
        return tokenizer.details(piece.texts, prompt=piece.prompt, add_special_tokens=piece.add_special_tokens)
    if isinstance(piece, ChatPiece):
        return tokenizer.chat_template.render(piece.chats)
    if isinstance(piece, ScanPiece):
        return tokenizer.scan(piece)
    return tokenizer.decode(piece.token_ids, piece.offsets, skip_special_tokens=piece.skip_special_tokens)


def _give_up() -> None:
    """End this process, for its thread can't be stopped. What it owes is tried elsewhere, and refused in the end."""
    logger.error("a text has been tokenized for %.0f s: this worker ends", _MAX_SECONDS)
    os._exit(1)


def _load(spec: TokenizerSpec) -> Tokenizer:
    """A tokenizer that has worked once."""
    try:
        tokenizer = Tokenizer(spec)
        tokenizer.encode(["warm up"])
        if spec.template:
            tokenizer.encode(["warm"], pair_texts=["up"])
    except TokenizerError as error:
        raise StartError(str(error)) from None
    except TextRefused as refused:
        raise StartError(f"{spec.folder}: the tokenizer can't take a plain text ({refused.reason.name})") from None
    return tokenizer


if __name__ == "__main__":
    child.run(serve_frontends, TokenizerStart)
