"""One request on its way through the pool: its parts, and the future that gets their answers.

Knows the order of the parts; nothing of workers.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from tokenizer_pool.messages import TextRefused
from tokenizer_pool.tasks import AnyAnswer, AnyPiece

Answer = TypeVar("Answer", bound=AnyAnswer)


class Part:
    """A piece of a request."""

    __slots__ = ("deaths", "num_chars", "piece", "seconds", "start")

    def __init__(self, piece: AnyPiece, *, start: int, num_chars: int) -> None:
        self.piece = piece
        self.start = start  # index of its first item in the request
        self.num_chars = num_chars  # of work, as pieces.Span has it
        self.seconds = 0.0  # of work, estimated when it is sent
        self.deaths = 0  # of workers that may have been its doing


class Job(Generic[Answer]):
    """The parts of one request.

    It is done once all are answered, one is refused, or whoever waited for `future` has left.
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
        index = refused.index + part.start if refused.index >= 0 else -1
        self.future.set_exception(
            TextRefused(refused.reason, index, num_tokens=refused.num_tokens, max_tokens=refused.max_tokens)
        )
