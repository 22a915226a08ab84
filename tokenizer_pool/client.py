"""The tokenizer pool as a frontend uses it: texts of a request in, flat ids out; or tokens, or texts of ids or chats.

Cuts requests into pieces that a worker tokenizes in a few milliseconds each, by lengths and by how fast workers have
been; spreads them over the workers and joins the answers. Knows nothing of HTTP or batches.
"""

import asyncio
import logging
import struct
from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence, Sized
from functools import partial
from itertools import accumulate, chain, repeat
from typing import Any, Generic, TypeVar

import numpy as np

from tokenizer_pool import messages
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.shortening import LONG_TEXT_CHARS, Shortener
from tokenizer_pool.tasks import (
    CODECS,
    AnyAnswer,
    AnyPiece,
    Chat,
    ChatPiece,
    DecodePiece,
    DetailedPiece,
    DetailPiece,
    ScannedPiece,
    ScanPiece,
    TextsPiece,
    Token,
    TokenizedTexts,
    TokenizePiece,
    first_unencodable,
    offsets_of,
)
from tokenizer_pool.token_ids import flatten, join
from wire.connection import Connect
from wire.vocabulary import NUM_CLASSES, RequestClass

# How long a query may find a worker busy: a piece that runs is not interrupted.
MAX_PIECE_SECONDS = 0.005

# A piece that was faster had its query tokenized before, and says nothing of the next request.
_FASTEST = 1e-7  # seconds a character, of any tokenizer on one core

_TEXT_CHARS = 20  # what a text costs besides its characters, in characters

Answer = TypeVar("Answer", bound=AnyAnswer)

# A worker gets enough not to idle for want of the next piece. The rest waits in the client, where requests take
# turns, where it can still go to whichever worker is free first, and costs nothing once its client has left.
_MAX_BULK_PIECES = 2
_MAX_INTERACTIVE_SECONDS = MAX_PIECE_SECONDS  # beyond it nothing more is sent

# Bounds of one request. Nothing is cut off here, and a token in full takes a hundred times the memory of its id.
MAX_DETAIL_CHARS = 1 << 20
MAX_DECODE_IDS = 1 << 20

# A prompt counts with each text, and query and instruction with each document, so that a small body can be a lot of
# work: this much is a minute or two.
MAX_REPEATED_CHARS = 1 << 27
_MAX_DEATHS = 3  # of workers, after which the piece that was running each time is refused
_MAX_ID = 2**31 - 1  # whether there is such a token is for the worker to say

logger = logging.getLogger("embedline.tokenizer_pool")


# Start and stop of some texts or pairs of a request, and their work: characters, prompts and what each costs besides.
Span = tuple[int, int, int]


class TokenizerSpeed:
    """How long tokenizing takes, learnt from what it took."""

    def __init__(self) -> None:
        self.seconds_per_char = 1e-6  # WordPiece on a slow core, until the first answer says better

    def learn(self, num_chars: int, seconds: float) -> None:
        """Take note of what a piece took. One that was held up by something else moves little."""
        rate = self.seconds_per_char
        self.seconds_per_char += 0.1 * (min(max(seconds / num_chars, rate / 4, _FASTEST), rate * 4) - rate)

    def seconds(self, num_chars: int) -> float:
        """The time that so much work should take."""
        return self.seconds_per_char * num_chars

    def chars(self, seconds: float) -> int:
        """How much work should take so long."""
        return int(seconds / self.seconds_per_char)


def cut(texts: Sequence[Sized], *, prompt: str, max_chars: int, pair_texts: Sequence[Sized] = ()) -> list[Span]:
    """Spans of at most `max_chars` of work each; a single text, pair or list of ids beyond that is one of its own."""
    each = len(prompt) + _TEXT_CHARS
    if len(texts) == 1:
        return [(0, 1, len(texts[0]) + each + sum(map(len, pair_texts)))]
    second = map(len, pair_texts) if pair_texts else repeat(0)
    ends = list(accumulate(len(text) + each + more for text, more in zip(texts, second, strict=False)))
    spans = []
    start = done = 0
    while start < len(texts):
        stop = max(bisect_right(ends, done + max_chars, start), start + 1)
        spans.append((start, stop, ends[stop - 1] - done))
        start, done = stop, ends[stop - 1]
    return spans


class PendingPiece:
    """A piece of a request."""

    __slots__ = ("deaths", "num_chars", "piece", "seconds", "speed", "start")

    def __init__(self, piece: AnyPiece, *, start: int, num_chars: int, speed: TokenizerSpeed) -> None:
        self.piece = piece
        self.start = start  # index of its first item in the request
        self.num_chars = num_chars  # of work, as Span has it
        self.speed = speed  # of its model and task
        self.seconds = 0.0  # of work, estimated when it is sent
        self.deaths = 0  # of workers that may have been its doing


def pending_pieces(
    items: Sequence[Sized],
    piece: Callable[[int, int], AnyPiece],
    *,
    speed: TokenizerSpeed,
    prompt: str = "",
    pair_texts: Sequence[str] = (),
) -> list[PendingPiece]:
    """A request in pieces of a few milliseconds each; `piece` makes one of the items [start, stop)."""
    spans = cut(items, prompt=prompt, max_chars=speed.chars(MAX_PIECE_SECONDS), pair_texts=pair_texts)
    return [
        PendingPiece(piece(start, stop), start=start, num_chars=num_chars, speed=speed)
        for start, stop, num_chars in spans
    ]


class PendingRequest(Generic[Answer]):
    """The pieces of one request until they are answered.

    It is done once all are answered, one is refused, or the caller has cancelled `future`.
    """

    __slots__ = ("_answers", "_num_missing", "future", "unsent")

    def __init__(self, pending: Sequence[PendingPiece], future: asyncio.Future[list[Answer]]) -> None:
        self.future = future
        self.unsent = deque(pending)
        self._answers: dict[int, Answer] = {}  # by the piece's start
        self._num_missing = len(pending)

    def take(self, pending: PendingPiece, answer: Answer) -> None:
        """A worker's answer."""
        self._answers[pending.start] = answer
        self._num_missing -= 1
        if not self._num_missing and not self.future.done():
            self.future.set_result([self._answers[start] for start in sorted(self._answers)])

    def refuse(self, pending: PendingPiece, refused: TextRefused) -> None:
        """A worker's refusal, or our own; its index is one of the piece's."""
        if self.future.done():
            return
        self.future.set_exception(refused.moved(range(pending.start, pending.start + pending.piece.num_items)))


AnyPendingRequest = PendingRequest[Any]


class WorkerLink:
    """One worker as a frontend sees it: the connection, and what was sent and is not answered yet.

    Knows nothing of what waits or of other workers.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        on_ready: Callable[[], None],
        on_answer: Callable[[AnyPendingRequest, PendingPiece, AnyAnswer | TextRefused], None],
        on_lost: Callable[[list[tuple[AnyPendingRequest, PendingPiece]]], None],
    ) -> None:
        """`on_answer` gets what became of a piece; `on_lost` what a dead worker owes, in sending order."""
        self.is_live = False  # READY came: a connection alone may wait for a worker that is only being started
        self._seconds = [0.0] * NUM_CLASSES  # of work that is outstanding, estimated
        self._num_pieces = [0] * NUM_CLASSES  # that are outstanding
        self._outstanding: dict[int, tuple[AnyPendingRequest, PendingPiece]] = {}  # by frame id
        self._num_sent = 0
        self._on_ready = on_ready
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._link = connect(on_frame=self._received, on_up=lambda: None, on_down=self._lost)

    @property
    def seconds(self) -> float:
        """Work that is outstanding, estimated."""
        return sum(self._seconds)

    @property
    def num_outstanding(self) -> int:
        """Parts that were sent and are not answered yet."""
        return len(self._outstanding)

    def takes(self, request_class: RequestClass) -> bool:
        """Whether more of a class may be sent now."""
        if request_class is RequestClass.BULK:
            return self.is_live and self._num_pieces[request_class] < _MAX_BULK_PIECES
        return self.is_live and self._seconds[request_class] < _MAX_INTERACTIVE_SECONDS

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> list[tuple[AnyPendingRequest, PendingPiece]]:
        """Close for good; what was outstanding is handed back."""
        self._link.close()
        return self._forget()

    def ask(self, piece: AnyPiece) -> Any:
        """The answer to a piece, if the worker is in this process, owes nothing and gives it at once.

        Raises TextRefused.
        """
        if self._link.ask is None or not self.is_live or self._outstanding or first_unencodable(piece) >= 0:
            return None
        return self._link.ask(piece)

    def send(self, request: AnyPendingRequest, pending: PendingPiece) -> None:
        """Send a piece to the live worker. Raises UnicodeEncodeError where a text holds a lone surrogate."""
        codec = CODECS[type(pending.piece)]
        payload = codec.encode_piece(pending.piece)
        self._num_sent += 1
        self._outstanding[self._num_sent] = (request, pending)
        self._seconds[pending.piece.request_class] += pending.seconds
        self._num_pieces[pending.piece.request_class] += 1
        self._link.send(codec.asked, self._num_sent, payload)

    def _received(self, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == messages.READY:
            self.is_live = True
            self._on_ready()
            return
        request, pending = self._outstanding[frame_id]
        answer = _decode(kind, payload, pending.piece)
        del self._outstanding[frame_id]
        self._seconds[pending.piece.request_class] -= pending.seconds
        self._num_pieces[pending.piece.request_class] -= 1
        self._on_answer(request, pending, answer)

    def _lost(self) -> None:
        self._on_lost(self._forget())

    def _forget(self) -> list[tuple[AnyPendingRequest, PendingPiece]]:
        owed = list(self._outstanding.values())
        self._outstanding.clear()
        self.is_live = False
        self._seconds = [0.0] * NUM_CLASSES
        self._num_pieces = [0] * NUM_CLASSES
        return owed


def _decode(kind: int, payload: memoryview, piece: AnyPiece) -> AnyAnswer | TextRefused:
    """An answer, whatever came: a request must not wait for one that nobody can read."""
    codec = CODECS[type(piece)]
    try:
        if kind == messages.REFUSED:
            return messages.decode_refused(payload)
        if kind == codec.answered:
            answer = codec.decode_answer(payload)
            if answer.num_items == piece.num_items:
                return answer
    except (struct.error, ValueError) as error:
        logger.error("an answer of a tokenizer can't be read: %s", error)
    else:
        logger.error("an answer of a tokenizer is not to what was asked")
    return TextRefused(TextRefusal.FAILED, -1)


class TokenizerPool:
    """All tokenizer workers, seen from one event loop.

    What workers have no room for waits here. Requests of a class take turns, piece by piece, so that a long one does
    not hold up the next.
    """

    def __init__(self, workers: Sequence[Connect], *, max_seqlens: Sequence[int]) -> None:
        """`max_seqlens`: the tokens a text may have, for each model."""
        self._loop = asyncio.get_running_loop()
        self._max_seqlens = max_seqlens
        self._speeds: defaultdict[tuple[int, type[AnyPiece]], TokenizerSpeed] = defaultdict(
            TokenizerSpeed
        )  # of each model and task
        # Ordered sets: a cancelled request is removed from the middle at constant cost.
        self._waiting: dict[RequestClass, OrderedDict[AnyPendingRequest, None]] = {
            request_class: OrderedDict() for request_class in RequestClass
        }
        self._workers = [
            WorkerLink(connect, on_ready=self._pump, on_answer=self._answered, on_lost=self._lost)
            for connect in workers
        ]

    def holds(self) -> dict[str, int]:
        """The work that waits for a worker or for the answer of one, for an operator who asks."""
        return {
            "unsent_requests": sum(map(len, self._waiting.values())),
            "sent_pieces": sum(worker.num_outstanding for worker in self._workers),
        }

    def open(self) -> None:
        """Begin to connect to the workers; they may be started later."""
        for worker in self._workers:
            worker.open()

    def close(self) -> None:
        """Close all connections. Callers that still wait are cancelled."""
        requests = {request for waiting in self._waiting.values() for request in waiting}
        for worker in self._workers:
            requests.update(request for request, _ in worker.close())
        for request in requests:
            request.future.cancel()

    async def tokenize(
        self,
        texts: Sequence[str],
        *,
        model: int,
        request_class: RequestClass,
        truncation: Truncation = Truncation.RIGHT,
        prompt: str = "",
        pair_texts: Sequence[str] = (),
        max_tokens: int | None = None,
        add_special_tokens: bool = True,
    ) -> TokenizedTexts:
        """Ids of each text with the prompt before it, special tokens included; at least one text.

        With `pair_texts`, as many, ids of each pair: put into the model's template where it has one, else the prompt
        before the first text, both as its tokenizer puts pairs together. `max_tokens` may be below what the model
        takes; `add_special_tokens` is for texts alone.

        Raises TextRefused with the index in `texts`. Cancelling it drops what no worker has yet.
        """
        assert texts, "a request without texts is refused at the edge"
        max_seqlen = self._max_seqlens[model]
        if max_tokens is not None:
            max_tokens = max_seqlen = min(max_tokens, max_seqlen)
        was_long = [len(text) > LONG_TEXT_CHARS for text in texts] if prompt and not pair_texts else []
        if max(map(len, chain(texts, pair_texts))) > LONG_TEXT_CHARS:
            shortener = self._shortener(model, request_class, max_seqlen, truncation, is_of_pair=bool(pair_texts))
            texts, pair_texts = await shortener.shortened(texts, pair_texts, prompt=prompt)
        if (pair_texts or prompt) and _num_chars(texts, pair_texts, prompt) > MAX_REPEATED_CHARS:
            raise TextRefused(TextRefusal.TOO_MUCH, -1, max_chars=MAX_REPEATED_CHARS)

        def piece(start: int, stop: int) -> TokenizePiece:
            own = texts[start:stop]
            if is_prompted := any(was_long[start:stop]):
                own = [text if was else prompt + text for text, was in zip(own, was_long[start:stop], strict=True)]
            return TokenizePiece(
                model,
                request_class,
                truncation,
                own,
                prompt,
                pair_texts[start:stop],
                max_tokens,
                add_special_tokens,
                is_prompted,
            )

        speed = self._speeds[model, TokenizePiece]
        pending = pending_pieces(texts, piece, speed=speed, prompt=prompt, pair_texts=pair_texts)
        answers: list[TokenizedTexts] = await self._answers(pending, request_class)
        return answers[0] if len(answers) == 1 else join(answers)

    async def shorten(
        self, texts: Sequence[str], *, model: int, request_class: RequestClass, max_tokens: int, truncation: Truncation
    ) -> Sequence[str]:
        """Long texts with more than `max_tokens` tokens cut down to a few more, where that changes none of those.

        Raises TextRefused with the index in `texts`: TOO_LARGE, FAILED.
        """
        return await self._shortener(model, request_class, max_tokens, truncation, is_of_pair=False).spans(texts)

    async def tokenize_details(
        self,
        texts: Sequence[str],
        *,
        model: int,
        request_class: RequestClass,
        add_special_tokens: bool = True,
        prompt: str = "",
    ) -> list[list[Token]]:
        """The tokens of each text with the prompt before it, one by one and none cut off; at least one text.

        Raises TextRefused with the index in `texts`: TOO_MUCH for more than MAX_DETAIL_CHARS in all, FAILED.
        """
        assert texts, "a request without texts is refused at the edge"
        if sum(map(len, texts)) + len(prompt) * len(texts) > MAX_DETAIL_CHARS:
            raise TextRefused(TextRefusal.TOO_MUCH, -1, max_chars=MAX_DETAIL_CHARS)

        def piece(start: int, stop: int) -> DetailPiece:
            return DetailPiece(model, request_class, texts[start:stop], prompt, add_special_tokens)

        pending = pending_pieces(texts, piece, speed=self._speeds[model, DetailPiece], prompt=prompt)
        answers: list[DetailedPiece] = await self._answers(pending, request_class)
        return [tokens for answer in answers for tokens in answer.tokens]

    async def decode(
        self,
        token_ids: Sequence[Sequence[int]],
        *,
        model: int,
        request_class: RequestClass,
        skip_special_tokens: bool = True,
    ) -> list[str]:
        """The text of each list of ids; at least one list, which may be empty.

        Raises TextRefused with the index in `token_ids`: OUT_OF_VOCABULARY for an id that the tokenizer has no token
        for, TOO_MUCH for more than MAX_DECODE_IDS in all, FAILED.
        """
        assert token_ids, "a request without ids is refused at the edge"
        lengths = np.fromiter(map(len, token_ids), np.int64, len(token_ids))
        if lengths.sum() > MAX_DECODE_IDS:
            raise TextRefused(TextRefusal.TOO_MUCH, -1)
        offsets = offsets_of(lengths)
        flat = await flatten(token_ids, offsets, vocab_size=_MAX_ID + 1)

        def piece(start: int, stop: int) -> DecodePiece:
            own = offsets[start : stop + 1]
            return DecodePiece(model, request_class, flat[own[0] : own[-1]], own - own[0], skip_special_tokens)

        pending = pending_pieces(token_ids, piece, speed=self._speeds[model, DecodePiece])
        answers: list[TextsPiece] = await self._answers(pending, request_class)
        return [text for answer in answers for text in answer.texts]

    async def render(self, chats: Sequence[Chat], *, model: int, request_class: RequestClass) -> list[str]:
        """The text of each conversation, of which there is at least one.

        Raises TextRefused with the index in `chats`: NO_TEMPLATE, TOO_MUCH for more than MAX_DETAIL_CHARS in all,
        FAILED for one that the template does not take, UNUSED for one with what it does not use.
        """
        conversations = [chat.messages for chat in chats]
        assert conversations, "a request without conversations is refused at the edge"
        if sum(chat.num_chars for chat in chats) > MAX_DETAIL_CHARS:
            raise TextRefused(TextRefusal.TOO_MUCH, -1)

        def piece(start: int, stop: int) -> ChatPiece:
            return ChatPiece(model, request_class, chats[start:stop])

        pending = pending_pieces(conversations, piece, speed=self._speeds[model, ChatPiece])
        answers: list[TextsPiece] = await self._answers(pending, request_class)
        return [text for answer in answers for text in answer.texts]

    async def _answers(self, pending: Sequence[PendingPiece], request_class: RequestClass) -> list[Answer]:
        """The workers' answers to each piece of a request, in order. Raises TextRefused."""
        if len(pending) == 1:
            answer = self._workers[0].ask(pending[0].piece)
            if answer is not None:
                pending[0].speed.learn(pending[0].num_chars, answer.seconds)
                return [answer]
        request: PendingRequest[Answer] = PendingRequest(pending, self._loop.create_future())
        waiting = self._waiting[request_class]
        waiting[request] = None
        self._pump()
        try:
            return await request.future
        finally:
            waiting.pop(request, None)
            request.unsent.clear()

    def _shortener(
        self, model: int, request_class: RequestClass, max_tokens: int, truncation: Truncation, *, is_of_pair: bool
    ) -> Shortener:
        speed = self._speeds[model, ScanPiece]

        async def scan(piece: ScanPiece) -> ScannedPiece:
            pending = PendingPiece(piece, start=0, num_chars=max(piece.num_chars, 1), speed=speed)
            answers: list[ScannedPiece] = await self._answers([pending], request_class)
            return answers[0]

        return Shortener(
            scan=scan,
            piece=partial(ScanPiece, model, request_class, is_of_pair=is_of_pair),
            slice_chars=speed.chars(MAX_PIECE_SECONDS),
            max_tokens=max_tokens,
            truncation=truncation,
        )

    def _pump(self) -> None:
        """Send what can be sent."""
        for request_class, waiting in self._waiting.items():
            while waiting:
                worker = self._choose_worker(request_class)
                if worker is None:
                    break
                request, _ = waiting.popitem(last=False)
                if request.future.done():
                    continue
                pending = request.unsent.popleft()
                if request.unsent:
                    waiting[request] = None
                self._send(worker, request, pending)

    def _choose_worker(self, request_class: RequestClass) -> WorkerLink | None:
        """The worker with the least to do, of several the one that was chosen longest ago; None if all are full."""
        best = None
        for worker in self._workers:
            if worker.takes(request_class) and (best is None or worker.seconds < best.seconds):
                best = worker
        if best is not None and best is not self._workers[-1]:
            self._workers.remove(best)
            self._workers.append(best)
        return best

    def _send(self, worker: WorkerLink, request: AnyPendingRequest, pending: PendingPiece) -> None:
        pending.seconds = pending.speed.seconds(pending.num_chars)
        try:
            worker.send(request, pending)
        except UnicodeEncodeError:
            request.refuse(pending, TextRefused(TextRefusal.FAILED, first_unencodable(pending.piece)))

    def _answered(self, request: AnyPendingRequest, pending: PendingPiece, answer: AnyAnswer | TextRefused) -> None:
        if isinstance(answer, TextRefused):
            request.refuse(pending, answer)
        else:
            pending.speed.learn(pending.num_chars, answer.seconds)
            request.take(pending, answer)
        self._pump()

    def _lost(self, owed: list[tuple[AnyPendingRequest, PendingPiece]]) -> None:
        """A worker died: what it owes goes first to another, or to the one that is started in its place."""
        _blame(owed)
        for request, pending in reversed(owed):
            if request.future.done():
                continue
            request.unsent.appendleft(pending)
            waiting = self._waiting[pending.piece.request_class]
            waiting[request] = None
            waiting.move_to_end(request, last=False)
        self._pump()


def _num_chars(texts: Sequence[str], pair_texts: Sequence[str], prompt: str) -> int:
    """The characters of all that is tokenized; each pair counts its query, and each text its prompt."""
    return sum(map(len, texts)) + sum(map(len, pair_texts)) + len(prompt) * len(texts)


def _blame(owed: Sequence[tuple[AnyPendingRequest, PendingPiece]]) -> None:
    """Refuse what keeps killing workers. Only what came first in its class can have been running.

    Where that leaves two, the interactive one ran first, and the bulk one is tried again without it.
    """
    for request_class in RequestClass:
        suspect = next(
            ((request, pending) for request, pending in owed if pending.piece.request_class is request_class), None
        )
        if suspect is None:
            continue
        request, pending = suspect
        pending.deaths += 1
        if pending.deaths == _MAX_DEATHS:
            request.refuse(pending, TextRefused(TextRefusal.FAILED, 0 if pending.piece.num_items == 1 else -1))
            break
