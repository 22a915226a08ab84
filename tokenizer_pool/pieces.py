"""A request cut into pieces that a worker tokenizes in a few milliseconds each, and the job that joins their answers.

Knows lengths and how fast workers have been; nothing of connections or of what tokenizing is.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Generic, TypeVar

from tokenizer_pool.messages import TextRefused
from tokenizer_pool.tasks import AnyAnswer, AnyPiece

# How long a query may find a worker busy: a piece that runs is not interrupted.
MAX_PIECE_SECONDS = 0.005

# What was faster had its query tokenized before, and says nothing of the next request.
_FASTEST = 1e-7  # seconds a character, of any tokenizer on one core

_TEXT_CHARS = 20  # what a text costs besides its characters, in characters

Answer = TypeVar("Answer", bound=AnyAnswer)


@dataclass(frozen=True, slots=True)
class Span:
    """The texts or pairs [start, stop) of a request."""

    start: int
    stop: int
    num_chars: int  # of work: characters, prompts and what each text or pair costs besides


class Pace:
    """How long tokenizing takes, learnt from what it took."""

    def __init__(self) -> None:
        self.seconds_per_char = 1e-6  # WordPiece on a slow core, until the first answer says better

    def learn(self, num_chars: int, seconds: float) -> None:
        """Take note of what a piece took. One that was held up by something else moves little."""
        rate = self.seconds_per_char
        self.seconds_per_char += 0.1 * (min(max(seconds / num_chars, rate / 4, _FASTEST), rate * 4) - rate)

    def seconds(self, num_chars: int) -> float:
        """What so much work should take."""
        return self.seconds_per_char * num_chars

    def chars(self, seconds: float) -> int:
        """How much work should take so long."""
        return int(seconds / self.seconds_per_char)


def cut(texts: Sequence[Sized], *, prompt: str, max_chars: int, pair_texts: Sequence[Sized] = ()) -> list[Span]:
    """Spans of at most `max_chars` of work each; a single text, pair or list of ids beyond that is one of its own."""
    each = len(prompt) + _TEXT_CHARS
    if len(texts) == 1:
        return [Span(0, 1, len(texts[0]) + each + sum(map(len, pair_texts)))]
    second = map(len, pair_texts) if pair_texts else repeat(0)
    ends = list(accumulate(len(text) + each + more for text, more in zip(texts, second, strict=False)))
    spans = []
    start = done = 0
    while start < len(texts):
        stop = max(bisect_right(ends, done + max_chars, start), start + 1)
        spans.append(Span(start, stop, ends[stop - 1] - done))
        start, done = stop, ends[stop - 1]
    return spans


class Part:
    """A piece of a request."""

    __slots__ = ("deaths", "num_chars", "piece", "seconds", "start")

    def __init__(self, piece: AnyPiece, *, start: int, num_chars: int) -> None:
        self.piece = piece
        self.start = start  # index of its first item in the request
        self.num_chars = num_chars  # of work, as Span has it
        self.seconds = 0.0  # of work, estimated when it is sent
        self.deaths = 0  # of workers that may have been its doing


def parts_of(
    items: Sequence[Sized],
    piece: Callable[[int, int], AnyPiece],
    *,
    pace: Pace,
    prompt: str = "",
    pair_texts: Sequence[str] = (),
) -> list[Part]:
    """A request in parts of a few milliseconds each; `piece` makes one of the items [start, stop)."""
    spans = cut(items, prompt=prompt, max_chars=pace.chars(MAX_PIECE_SECONDS), pair_texts=pair_texts)
    return [Part(piece(span.start, span.stop), start=span.start, num_chars=span.num_chars) for span in spans]


class Job(Generic[Answer]):
    """The parts of one request.

    It is done once all are answered, one is refused, or the caller has cancelled `future`.
    """

    __slots__ = ("_answers", "_num_missing", "future", "unsent")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.unsent = deque(parts)
        self._answers: dict[int, Answer] = {}  # by the part's start
        self._num_missing = len(parts)

    def take(self, part: Part, answer: Answer) -> None:
        """A worker's answer."""
        self._answers[part.start] = answer
        self._num_missing -= 1
        if not self._num_missing and not self.future.done():
            self.future.set_result([self._answers[start] for start in sorted(self._answers)])

    def refuse(self, part: Part, refused: TextRefused) -> None:
        """A worker's refusal, or our own; its index is one of the part's."""
        if self.future.done():
            return
        self.future.set_exception(refused.moved(range(part.start, part.start + part.piece.num_items)))
