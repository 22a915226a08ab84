"""Cuts inputs into batches by count and characters, as they are asked for: the inputs may be a stream without end."""

import itertools
import sys
from collections.abc import Iterable, Sequence, Sized
from typing import Any

from embedline.client.tasks.task import Batch, Task

_CHECKED_TOGETHER = 1024


class Batches:
    """The batches of one call. Reads the inputs in the thread that asks.

    Raises TypeError for a wrong item: of a list or tuple at once, before anything is sent; of a stream when it is read.
    """

    def __init__(self, task: Task[Any], items: Iterable[Any], *, batch_size: int, max_chars: int | None) -> None:
        if isinstance(items, Sequence):
            for start in range(0, len(items), _CHECKED_TOGETHER):  # what is made of them is not kept: it may be large
                task.prepare(list(items[start : start + _CHECKED_TOGETHER]), start)
        self.total = len(items) if isinstance(items, Sized) else None
        self._task = task
        self._items = iter(items)
        self._batch_size = sys.maxsize if task.is_whole else batch_size
        self._max_chars = None if task.is_whole else max_chars
        self._held: list[Any] = []  # read, and not in a batch yet
        self._start = 0  # of the next batch
        self.are_over = self.total == 0

    def next(self, most: int | None) -> Batch | None:
        """The next batch, of at most so many items; None if there is none. Raises TypeError for a wrong item."""
        size = self._batch_size if most is None or self._task.is_whole else min(self._batch_size, most)
        new = list(itertools.islice(self._items, max(0, size - len(self._held))))
        self._held += self._task.prepare(new, self._start + len(self._held))
        count = self._fitting(min(size, len(self._held)))
        if not count:
            self.are_over = True
            return None
        batch = Batch(self._start, self._held[:count])
        del self._held[:count]
        self._start = batch.stop
        self.are_over = batch.stop == self.total
        return batch

    def _fitting(self, count: int) -> int:
        """How many of the first items fit into one request; always one, if there is one."""
        if self._max_chars is None:
            return count
        lengths = itertools.accumulate(map(self._task.length, self._held[:count]))
        return max(min(count, 1), sum(length <= self._max_chars for length in lengths))
