"""The tokenizer pool as a frontend uses it: texts of a whole request in, flat ids out.

Cuts requests into pieces, spreads them over the workers and joins the answers. Knows nothing of HTTP or batches.
"""

from collections import OrderedDict
from collections.abc import Sequence

from tokenizer_pool.job import Job, Part
from tokenizer_pool.lane import Lane
from tokenizer_pool.messages import Piece, Refusal, TextRefused, TokenizedPiece, Truncation
from tokenizer_pool.pieces import MAX_PIECE_SECONDS, Pace, cap, cut
from tokenizer_pool.token_ids import TokenizedTexts
from wire.vocabulary import RequestClass

__all__ = ["TokenizedTexts", "TokenizerPool"]

_MAX_DEATHS = 3  # of workers, after which the part that was running each time is refused


class TokenizerPool:
    """All tokenizer workers, seen from one event loop.

    What workers have no room for waits here. Requests of a class take turns, part by part, so that a long one does
    not hold up the next.
    """

    def __init__(self, paths: Sequence[str], *, max_seqlens: Sequence[int]) -> None:
        """`paths` are the workers' sockets; `max_seqlens` the tokens a text may have, for each model."""
        self._max_seqlens = max_seqlens
        self._paces = [Pace() for _ in max_seqlens]
        # Ordered sets: whoever leaves is taken out of the middle, at the same price however many wait.
        self._waiting: dict[RequestClass, OrderedDict[Job, None]] = {
            request_class: OrderedDict() for request_class in RequestClass
        }
        self._lanes = [Lane(path, on_ready=self._pump, on_answer=self._answered, on_lost=self._lost) for path in paths]

    def open(self) -> None:
        """Begin to connect to the workers; they may be started later."""
        for lane in self._lanes:
            lane.open()

    def close(self) -> None:
        """Hang up. Whoever still waits for ids is cancelled."""
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
    ) -> TokenizedTexts:
        """Ids of each text with the prompt before it, special tokens included; at least one text.

        Raises TextRefused with the index in `texts`. Cancelling it drops what no worker has yet.
        """
        assert texts, "a request without texts is refused at the edge"
        texts, cut_short = cap(texts, max_seqlen=self._max_seqlens[model], truncation=truncation)
        spans = cut(texts, prompt=prompt, max_chars=self._paces[model].chars(MAX_PIECE_SECONDS))
        job = Job(
            [
                Part(
                    Piece(model, request_class, truncation, texts[span.start : span.stop], prompt),
                    start=span.start,
                    num_chars=span.num_chars,
                )
                for span in spans
            ]
        )
        waiting = self._waiting[request_class]
        waiting[job] = None
        self._pump()
        try:
            tokenized = await job.future
        finally:
            waiting.pop(job, None)
            job.unsent.clear()
        return _mark_truncated(tokenized, cut_short) if cut_short else tokenized

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
        """The worker with the least to do, None where there is none to send to."""
        best = None
        for lane in self._lanes:
            if lane.takes(request_class) and (best is None or lane.seconds < best.seconds):
                best = lane
        return best

    def _send(self, lane: Lane, job: Job, part: Part) -> None:
        part.seconds = self._paces[part.piece.model].seconds(part.num_chars)
        try:
            lane.send(job, part)
        except UnicodeEncodeError:
            job.refuse(part, TextRefused(Refusal.FAILED, _first_unencodable(part.piece.texts)))

    def _answered(self, job: Job, part: Part, answer: TokenizedPiece | TextRefused) -> None:
        if isinstance(answer, TokenizedPiece):
            self._paces[part.piece.model].learn(part.num_chars, answer.seconds)
            job.take(part, answer)
        else:
            job.refuse(part, answer)
        self._pump()

    def _lost(self, owed: list[tuple[Job, Part]]) -> None:
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


def _blame(owed: Sequence[tuple[Job, Part]]) -> None:
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
            job.refuse(part, TextRefused(Refusal.FAILED, 0 if len(part.piece.texts) == 1 else -1))
            break


def _first_unencodable(texts: Sequence[str]) -> int:
    """Index of the first text with a lone surrogate, -1 where there is none."""
    for index, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError:
            return index
    return -1


def _mark_truncated(tokenized: TokenizedTexts, indices: Sequence[int]) -> TokenizedTexts:
    truncated = tokenized.truncated.copy()
    truncated[indices] = 1
    return TokenizedTexts(tokenized.token_ids, tokenized.offsets, truncated)
