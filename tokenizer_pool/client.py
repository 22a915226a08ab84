"""The tokenizer pool as a frontend uses it: texts of a request in, flat ids out; or tokens, or texts of ids or chats.

Cuts requests into pieces, spreads them over the workers and joins the answers. Knows nothing of HTTP or batches.
"""

import logging
import struct
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tokenizer_pool import messages
from tokenizer_pool.messages import Piece, Refusal, TextRefused, TokenizedPiece, Truncation
from tokenizer_pool.pieces import MAX_PIECE_SECONDS, Answer, Job, Pace, Part, parts_of
from tokenizer_pool.shortening import LONG_TEXT_CHARS, Shortener, has_long
from tokenizer_pool.tasks import (
    TASKS,
    AnyAnswer,
    AnyPiece,
    Chat,
    ChatPiece,
    DecodedPiece,
    DecodePiece,
    DetailedPiece,
    DetailPiece,
    RenderedPiece,
    ScannedPiece,
    ScanPiece,
    Token,
    first_unencodable,
)
from tokenizer_pool.token_ids import TokenizedTexts, flatten, join, offsets_of
from wire.connection import Link
from wire.vocabulary import NUM_CLASSES, RequestClass

__all__ = ["TokenizedTexts", "TokenizerPool"]

# A worker gets enough not to idle for want of the next piece. The rest waits in the client, where requests take
# turns, where it can still go to whichever worker is free first, and costs nothing once its client has left.
_MAX_BULK_PARTS = 2
_MAX_INTERACTIVE_SECONDS = MAX_PIECE_SECONDS  # beyond it nothing more is sent
AnyJob = Job[Any]

# Of one request. Nothing is cut off here, and a token in full takes a hundred times the memory of its id.
MAX_DETAIL_CHARS = 1 << 20
MAX_DECODE_IDS = 1 << 20

# A prompt counts with each text, and query and instruction with each document, so that a small body can be a lot of
# work: this much is a minute or two.
MAX_REPEATED_CHARS = 1 << 27
_MAX_DEATHS = 3  # of workers, after which the part that was running each time is refused
_MAX_ID = 2**31 - 1  # whether there is such a token is for the worker to say

logger = logging.getLogger("embedline.tokenizer_pool")


class Lane:
    """One worker as a frontend sees it: the connection, and what was sent and is not answered yet.

    Knows nothing of what waits or of other workers.
    """

    def __init__(
        self,
        path: str,
        *,
        on_ready: Callable[[], None],
        on_answer: Callable[[AnyJob, Part, AnyAnswer | TextRefused], None],
        on_lost: Callable[[list[tuple[AnyJob, Part]]], None],
    ) -> None:
        """`on_answer` gets what became of a part; `on_lost` what a dead worker owes, in sending order."""
        self.is_live = False  # READY came: a connection alone may wait for a worker that is only being started
        self._seconds = [0.0] * NUM_CLASSES  # of work that is outstanding, estimated
        self._num_parts = [0] * NUM_CLASSES  # that are outstanding
        self._outstanding: dict[int, tuple[AnyJob, Part]] = {}  # by frame id
        self._num_sent = 0
        self._on_ready = on_ready
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._link = Link(path, on_frame=self._received, on_up=lambda: None, on_down=self._lost)

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
            return self.is_live and self._num_parts[request_class] < _MAX_BULK_PARTS
        return self.is_live and self._seconds[request_class] < _MAX_INTERACTIVE_SECONDS

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> list[tuple[AnyJob, Part]]:
        """Close for good; what was outstanding is handed back."""
        self._link.close()
        return self._forget()

    def send(self, job: AnyJob, part: Part) -> None:
        """Send a part to the live worker. Raises UnicodeEncodeError where a text holds a lone surrogate."""
        task = TASKS[type(part.piece)]
        payload = task.encode_piece(part.piece)
        self._num_sent += 1
        self._outstanding[self._num_sent] = (job, part)
        self._seconds[part.piece.request_class] += part.seconds
        self._num_parts[part.piece.request_class] += 1
        self._link.send(task.asked, self._num_sent, payload)

    def _received(self, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == messages.READY:
            self.is_live = True
            self._on_ready()
            return
        job, part = self._outstanding[frame_id]
        answer = _decode(kind, payload, part.piece)
        del self._outstanding[frame_id]
        self._seconds[part.piece.request_class] -= part.seconds
        self._num_parts[part.piece.request_class] -= 1
        self._on_answer(job, part, answer)

    def _lost(self) -> None:
        self._on_lost(self._forget())

    def _forget(self) -> list[tuple[AnyJob, Part]]:
        owed = list(self._outstanding.values())
        self._outstanding.clear()
        self.is_live = False
        self._seconds = [0.0] * NUM_CLASSES
        self._num_parts = [0] * NUM_CLASSES
        return owed


def _decode(kind: int, payload: memoryview, piece: AnyPiece) -> AnyAnswer | TextRefused:
    """An answer, whatever came: a request must not wait for one that nobody can read."""
    task = TASKS[type(piece)]
    try:
        if kind == messages.REFUSED:
            return messages.decode_refused(payload)
        if kind == task.answered:
            answer = task.decode_answer(payload)
            if answer.num_items == piece.num_items:
                return answer
    except (struct.error, ValueError) as error:
        logger.error("an answer of a tokenizer can't be read: %s", error)
    else:
        logger.error("an answer of a tokenizer is not to what was asked")
    return TextRefused(Refusal.FAILED, -1)


class TokenizerPool:
    """All tokenizer workers, seen from one event loop.

    What workers have no room for waits here. Requests of a class take turns, part by part, so that a long one does
    not hold up the next.
    """

    def __init__(self, paths: Sequence[str], *, max_seqlens: Sequence[int]) -> None:
        """`paths` are the workers' sockets; `max_seqlens` the tokens a text may have, for each model."""
        self._max_seqlens = max_seqlens
        self._paces: defaultdict[tuple[int, type[AnyPiece]], Pace] = defaultdict(Pace)  # of each model and task
        # Ordered sets: a cancelled job is removed from the middle at constant cost.
        self._waiting: dict[RequestClass, OrderedDict[AnyJob, None]] = {
            request_class: OrderedDict() for request_class in RequestClass
        }
        self._lanes = [Lane(path, on_ready=self._pump, on_answer=self._answered, on_lost=self._lost) for path in paths]

    def holds(self) -> dict[str, int]:
        """What waits for a worker, and for the answer of one, for an operator who asks."""
        return {
            "unsent_requests": sum(map(len, self._waiting.values())),
            "sent_pieces": sum(lane.num_outstanding for lane in self._lanes),
        }

    def open(self) -> None:
        """Begin to connect to the workers; they may be started later."""
        for lane in self._lanes:
            lane.open()

    def close(self) -> None:
        """Close all connections. Callers that still wait are cancelled."""
        jobs = {job for waiting in self._waiting.values() for job in waiting}
        for lane in self._lanes:
            jobs.update(job for job, _ in lane.close())
        for job in jobs:
            job.future.cancel()

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
        if has_long(texts) or (pair_texts and has_long(pair_texts)):
            shortener = self._shortener(model, request_class, max_seqlen, truncation, is_of_pair=bool(pair_texts))
            texts, pair_texts = await shortener.shortened(texts, pair_texts, prompt=prompt)
        if (pair_texts or prompt) and _num_chars(texts, pair_texts, prompt) > MAX_REPEATED_CHARS:
            raise TextRefused(Refusal.TOO_MUCH, -1, max_chars=MAX_REPEATED_CHARS)

        def piece(start: int, stop: int) -> Piece:
            own = texts[start:stop]
            if is_prompted := any(was_long[start:stop]):
                own = [text if was else prompt + text for text, was in zip(own, was_long[start:stop], strict=True)]
            return Piece(
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

        parts = parts_of(texts, piece, pace=self._paces[model, Piece], prompt=prompt, pair_texts=pair_texts)
        job: Job[TokenizedPiece] = Job(parts)
        return join(await self._answers(job, request_class))

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
            raise TextRefused(Refusal.TOO_MUCH, -1, max_chars=MAX_DETAIL_CHARS)

        def piece(start: int, stop: int) -> DetailPiece:
            return DetailPiece(model, request_class, texts[start:stop], prompt, add_special_tokens)

        job: Job[DetailedPiece] = Job(parts_of(texts, piece, pace=self._paces[model, DetailPiece], prompt=prompt))
        return [tokens for answer in await self._answers(job, request_class) for tokens in answer.tokens]

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
            raise TextRefused(Refusal.TOO_MUCH, -1)
        offsets = offsets_of(lengths)
        flat = await flatten(token_ids, offsets, vocab_size=_MAX_ID + 1)

        def piece(start: int, stop: int) -> DecodePiece:
            own = offsets[start : stop + 1]
            return DecodePiece(model, request_class, flat[own[0] : own[-1]], own - own[0], skip_special_tokens)

        job: Job[DecodedPiece] = Job(parts_of(token_ids, piece, pace=self._paces[model, DecodePiece]))
        return [text for answer in await self._answers(job, request_class) for text in answer.texts]

    async def render(
        self, conversations: Sequence[str], *, model: int, request_class: RequestClass, chat: Chat
    ) -> list[str]:
        """The text of each conversation, which is a JSON list of messages; at least one conversation.

        Raises TextRefused with the index in `conversations`: NO_TEMPLATE, TOO_MUCH for more than MAX_DETAIL_CHARS in
        all, FAILED for one that the template does not take.
        """
        assert conversations, "a request without conversations is refused at the edge"
        if sum(map(len, conversations)) > MAX_DETAIL_CHARS:
            raise TextRefused(Refusal.TOO_MUCH, -1)

        def piece(start: int, stop: int) -> ChatPiece:
            return ChatPiece(model, request_class, conversations[start:stop], chat)

        job: Job[RenderedPiece] = Job(parts_of(conversations, piece, pace=self._paces[model, ChatPiece]))
        return [text for answer in await self._answers(job, request_class) for text in answer.texts]

    async def _answers(self, job: Job[Answer], request_class: RequestClass) -> list[Answer]:
        """What workers say to each part, in order. Raises TextRefused."""
        waiting = self._waiting[request_class]
        waiting[job] = None
        self._pump()
        try:
            return await job.future
        finally:
            waiting.pop(job, None)
            job.unsent.clear()

    def _shortener(
        self, model: int, request_class: RequestClass, max_tokens: int, truncation: Truncation, *, is_of_pair: bool
    ) -> Shortener:
        async def scan(piece: ScanPiece) -> ScannedPiece:
            job: Job[ScannedPiece] = Job([Part(piece, start=0, num_chars=max(piece.num_chars, 1))])
            return (await self._answers(job, request_class))[0]

        return Shortener(
            scan=scan,
            piece=partial(ScanPiece, model, request_class, is_of_pair=is_of_pair),
            slice_chars=self._paces[model, ScanPiece].chars(MAX_PIECE_SECONDS),
            max_tokens=max_tokens,
            truncation=truncation,
        )

    def _pump(self) -> None:
        """Send what can be sent."""
        for request_class, waiting in self._waiting.items():
            while waiting:
                lane = self._choose_lane(request_class)
                if lane is None:
                    break
                job, _ = waiting.popitem(last=False)
                if job.future.done():
                    continue
                part = job.unsent.popleft()
                if job.unsent:
                    waiting[job] = None
                self._send(lane, job, part)

    def _choose_lane(self, request_class: RequestClass) -> Lane | None:
        """The worker with the least to do, of several the one that was chosen longest ago; None if all are full."""
        best = None
        for lane in self._lanes:
            if lane.takes(request_class) and (best is None or lane.seconds < best.seconds):
                best = lane
        if best is not None and best is not self._lanes[-1]:
            self._lanes.remove(best)
            self._lanes.append(best)
        return best

    def _send(self, lane: Lane, job: AnyJob, part: Part) -> None:
        part.seconds = self._pace(part).seconds(part.num_chars)
        try:
            lane.send(job, part)
        except UnicodeEncodeError:
            job.refuse(part, TextRefused(Refusal.FAILED, first_unencodable(part.piece)))

    def _pace(self, part: Part) -> Pace:
        return self._paces[part.piece.model, type(part.piece)]

    def _answered(self, job: AnyJob, part: Part, answer: AnyAnswer | TextRefused) -> None:
        if isinstance(answer, TextRefused):
            job.refuse(part, answer)
        else:
            self._pace(part).learn(part.num_chars, answer.seconds)
            job.take(part, answer)
        self._pump()

    def _lost(self, owed: list[tuple[AnyJob, Part]]) -> None:
        """A worker died: what it owes goes first to another, or to the one that is started in its place."""
        _blame(owed)
        for job, part in reversed(owed):
            if job.future.done():
                continue
            job.unsent.appendleft(part)
            waiting = self._waiting[part.piece.request_class]
            waiting[job] = None
            waiting.move_to_end(job, last=False)
        self._pump()


def _num_chars(texts: Sequence[str], pair_texts: Sequence[str], prompt: str) -> int:
    """Of all that is tokenized; each pair counts its query, and each text its prompt."""
    return sum(map(len, texts)) + sum(map(len, pair_texts)) + len(prompt) * len(texts)


def _blame(owed: Sequence[tuple[AnyJob, Part]]) -> None:
    """Refuse what keeps killing workers. Only what came first in its class can have been running.

    Where that leaves two, the interactive one ran first, and the bulk one is tried again without it.
    """
    for request_class in RequestClass:
        suspect = next(((job, part) for job, part in owed if part.piece.request_class is request_class), None)
        if suspect is None:
            continue
        job, part = suspect
        part.deaths += 1
        if part.deaths == _MAX_DEATHS:
            job.refuse(part, TextRefused(Refusal.FAILED, 0 if part.piece.num_items == 1 else -1))
            break
