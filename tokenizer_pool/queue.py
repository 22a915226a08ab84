"""The order in which a worker takes the pieces that wait in it. Pure: knows no clock, no sockets, no texts."""

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from wire.vocabulary import RequestClass

# Interactive work goes first, but after this much of it a bulk piece that waits gets its turn: with
# pieces of 5 ms bulk keeps a fifth of a worker that interactive work alone would fill.
MAX_STRETCH_SECONDS = 0.020

Work = TypeVar("Work")


class _Waiting(NamedTuple, Generic[Work]):
    work: Work
    owner: object


class PieceQueue(Generic[Work]):
    """Interactive before bulk, first come first served inside a class, and bulk is never starved.

    The caller takes a piece with `pop`, runs it to its end and says with `spent` what it took.
    """

    def __init__(self) -> None:
        self._interactive: deque[_Waiting[Work]] = deque()
        self._bulk: deque[_Waiting[Work]] = deque()
        self._stretch = 0.0  # seconds of interactive work since a bulk piece had its turn or none waited

    def __len__(self) -> int:
        return len(self._interactive) + len(self._bulk)

    def push(self, work: Work, request_class: RequestClass, *, owner: object) -> None:
        """Let a piece wait; `owner` is who it is for."""
        self._of(request_class).append(_Waiting(work, owner))

    def pop(self) -> Work:
        """The piece to run now. The queue must not be empty."""
        bulk_is_due = self._stretch >= MAX_STRETCH_SECONDS or not self._interactive
        return (self._bulk if self._bulk and bulk_is_due else self._interactive).popleft().work

    def spent(self, request_class: RequestClass, seconds: float) -> None:
        """Take note of how long the piece popped last has run."""
        if request_class is RequestClass.INTERACTIVE and self._bulk:
            self._stretch += seconds
        else:
            self._stretch = 0.0

    def drop(self, owner: object) -> None:
        """Forget what waits for an owner who is gone."""
        self._interactive = deque(waiting for waiting in self._interactive if waiting.owner is not owner)
        self._bulk = deque(waiting for waiting in self._bulk if waiting.owner is not owner)

    def _of(self, request_class: RequestClass) -> deque[_Waiting[Work]]:
        return self._bulk if request_class is RequestClass.BULK else self._interactive
