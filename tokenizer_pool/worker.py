"""A tokenizer worker: `python -P -m tokenizer_pool.worker <control fd> <supervisor pid>`.

Takes pieces from frontends, tokenizes them one after the other and answers. Knows nothing of whole requests. With
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
from typing import NamedTuple, NoReturn

from tokenizer_pool import messages
from tokenizer_pool.guarded import TextQuarantine
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
from wire.connection import Connection, serve
from wire.frames import PayloadTooLarge
from wire.metrics import Recorder
from wire.page import Page
from wire.tokenizer_files import TokenizerError
from wire.vocabulary import RequestClass

# Interactive work goes first, but after this much of it a bulk piece that waits gets its turn: with
# pieces of 5 ms bulk keeps a fifth of a worker that interactive work alone would fill.
MAX_STRETCH_SECONDS = 0.020

# Between two looks at what has come a worker runs pieces for so long, and a bulk piece only alone: so a query waits for
# no more than it does for the longest piece, and the loop's own work is shared by all that came together.
_TICK_SECONDS = 0.003

_MAX_CHARS_AT_ONCE = 2000  # of a piece that is answered within the call that asks: well below a millisecond

# A piece of more is mostly a single long text, and seconds without a heartbeat would look stuck.
MAX_CHARS_ON_LOOP = LONG_TEXT_CHARS

# Heartbeats go on while a long text runs, so it is for the worker itself to see that it will not end. The longest
# texts of the longest models take some seconds.
_MAX_SECONDS = 120.0

# of each model
_COUNTED = (
    "embedline_tokenized_texts_total",
    "embedline_tokenized_tokens_total",
    "embedline_tokenize_seconds_total",
)

logger = logging.getLogger("embedline.tokenizer_pool")


class QueuedPiece(NamedTuple):
    """A piece and whom to answer."""

    piece: AnyPiece
    connection: Connection
    frame_id: int


class Worker:
    """Runs one piece after the other, and every few milliseconds reads what has arrived.

    So a query waits for the piece that runs, or a few short ones of queries, and never for the bulk that waits.
    A long text runs in a thread, where it does not keep the process from its heartbeat; it is still the only one.
    """

    def __init__(self, tokenizers: Sequence[Tokenizer], *, models: Sequence[str], metrics: Recorder) -> None:
        self._tokenizers = tokenizers
        self._counters = [tuple(metrics.counter(name, model) for name in _COUNTED) for model in models]
        self._queue = PieceQueue()
        self._connections: set[Connection] = set()
        self._is_running = False
        self._at_once_until = 0.0  # time.perf_counter() seconds, of this tick; 0 = nothing was asked in it
        self._idle: asyncio.Event | None = None  # once somebody waits for the end of what waits here
        self._alone = asyncio.Event()
        self._alone.set()
        self._loop = asyncio.get_running_loop()

    def accepted(self, connection: Connection) -> None:
        """A frontend has connected."""
        self._connections.add(connection)
        self._alone.clear()
        connection.send(messages.READY, 0)

    def received(self, connection: Connection, kind: int, frame_id: int, payload: memoryview) -> None:
        """A frontend asks for something."""
        self._queue.push(QueuedPiece(BY_KIND[kind].decode_piece(payload), connection, frame_id))
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._run)

    def ask(self, piece: AnyPiece) -> AnyAnswer | None:
        """Answer a short piece of a query within the call, for a frontend in this process; None where something else
        runs, where the piece is not such a one, or where this tick has had _TICK_SECONDS of them. Raises TextRefused.
        """
        is_query = piece.request_class is RequestClass.INTERACTIVE and piece.num_chars <= _MAX_CHARS_AT_ONCE
        if self._is_running or not is_query:
            return None
        now = time.perf_counter()
        if not self._at_once_until:
            self._at_once_until = now + _TICK_SECONDS
            self._loop.call_soon(self._tick_ended)
        elif now >= self._at_once_until:  # or the loop would stand still for all that came together
            return None
        try:
            answer = _do(self._tokenizers[piece.model], piece)
        except TextRefused:
            raise
        except BaseException:
            _end()
        self._count(piece.model, answer)
        return answer

    def _tick_ended(self) -> None:
        self._at_once_until = 0.0

    def lost(self, connection: Connection) -> None:
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
        if self._is_running:
            self._idle = asyncio.Event()
            await self._idle.wait()
        for connection in self._connections:
            connection.close()
        await self._alone.wait()

    def _run(self) -> None:
        ends, queue = time.perf_counter() + _TICK_SECONDS, self._queue
        while queue:  # else the frontend has left
            asked = queue.pop()
            is_bulk = asked.piece.request_class is RequestClass.BULK
            work = partial(_do, self._tokenizers[asked.piece.model], asked.piece)
            if asked.piece.num_chars > MAX_CHARS_ON_LOOP:
                self._run_in_thread(asked, work)
                return
            if self._answer(asked, work, time.perf_counter()) >= ends or is_bulk or queue.is_bulks_turn:
                break
        self._go_on()

    def _run_in_thread(self, asked: QueuedPiece, work: Callable[[], AnyAnswer]) -> None:
        def ended(done: asyncio.Future[AnyAnswer]) -> None:
            stuck.cancel()
            self._answer(asked, done.result, start)
            self._go_on()

        start = time.perf_counter()
        stuck = self._loop.call_later(_MAX_SECONDS, _give_up)
        self._loop.run_in_executor(None, work).add_done_callback(ended)

    def _answer(self, asked: QueuedPiece, result: Callable[[], AnyAnswer], start: float) -> float:
        """Send what `result` returns or raises. Returns the time at which it has ended."""
        piece = asked.piece
        try:
            answer = result()
            self._send(asked, answer)
        except TextRefused as refused:
            asked.connection.send(messages.REFUSED, asked.frame_id, messages.encode_refused(refused))
        except BaseException:
            _end()
        else:
            self._count(piece.model, answer)
        now = time.perf_counter()
        self._queue.spent(piece.request_class, now - start)
        return now

    def _go_on(self) -> None:
        """Read what has come, then run what waits."""
        if self._queue:
            # Twice, because a loop polls its sockets before it runs what is ready: the first tick sends the answers
            # and reads what has come, and only then the next piece is chosen.
            self._loop.call_soon(self._loop.call_soon, self._run)
            return
        self._is_running = False
        if self._idle is not None:
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
        texts, tokens, seconds = self._counters[model]
        texts.value += answer.num_items
        tokens.value += answer.num_tokens
        seconds.value += answer.seconds


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

    @property
    def is_bulks_turn(self) -> bool:
        """Whether the piece to run now is a bulk one."""
        return bool(self._bulk) and (self._stretch >= MAX_STRETCH_SECONDS or not self._interactive)

    def pop(self) -> QueuedPiece:
        """The piece to run now. The queue must not be empty."""
        return (self._bulk if self.is_bulks_turn else self._interactive).popleft()

    def spent(self, request_class: RequestClass, seconds: float) -> None:
        """Take note of how long the piece popped last has run."""
        if request_class is RequestClass.INTERACTIVE and self._bulk:
            self._stretch += seconds
        else:
            self._stretch = 0.0

    def drop(self, connection: Connection) -> None:
        """Forget what waits for a frontend that is gone."""
        self._interactive = deque(asked for asked in self._interactive if asked.connection is not connection)
        self._bulk = deque(asked for asked in self._bulk if asked.connection is not connection)


def load_worker(start: TokenizerStart, metrics: Recorder, *, page: Page | None = None, frontend: int = 0) -> Worker:
    """A worker on this event loop; with a page it is in the process of this frontend.

    Raises StartError where a model folder has no usable tokenizer.
    """
    # One piece on one core: the pool is the parallelism, and the library's own threads would fight it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    models = range(len(start.models))
    quarantines = [TextQuarantine(page, frontend=frontend, model=model) if page else None for model in models]
    loaded = [_load(spec, quarantine) for spec, quarantine in zip(start.tokenizers, quarantines, strict=True)]
    for quarantine in quarantines:
        if quarantine:
            quarantine.begin(time.monotonic())
    return Worker(loaded, models=start.models, metrics=metrics)


async def serve_frontends(child: Child, start: TokenizerStart) -> None:
    """The role. Raises StartError."""
    assert start.listener_fd is not None, "a process of its own has a socket"
    worker = load_worker(start, child.metrics)
    listener = socket.socket(fileno=start.listener_fd)
    server = await serve(listener, worker.received, worker.accepted, worker.lost)
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


def _end() -> NoReturn:
    """End this process, or what waits would wait for ever: a frontend that has a worker goes on after errors."""
    logger.critical("an error that is not a text's: this process ends", exc_info=True)
    os._exit(1)


def _give_up() -> None:
    """End this process, for its thread can't be stopped. What it owes is tried elsewhere, and refused in the end."""
    logger.error("a text has been tokenized for %.0f s: this worker ends", _MAX_SECONDS)
    os._exit(1)


def _load(spec: TokenizerSpec, quarantine: TextQuarantine | None) -> Tokenizer:
    """A tokenizer that has worked once."""
    try:
        tokenizer = Tokenizer(spec, quarantine)
        tokenizer.encode(["warm up"])
        if spec.template or spec.chat_pairs:
            tokenizer.encode(["warm"], pair_texts=["up"])
    except TokenizerError as error:
        raise StartError(str(error)) from None
    except TextRefused as refused:
        raise StartError(f"{spec.folder}: the tokenizer can't take a plain text ({refused.reason.name})") from None
    return tokenizer


if __name__ == "__main__":
    child.run(serve_frontends, TokenizerStart)
