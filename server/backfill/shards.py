"""Puts rows, which come in any order, back into their shards. One thread's."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.backfill.parts import Content
from server.backfill.plan import Plan
from server.backfill.rows import BadText, Rows

_TOO_LARGE = "a number of its row is too large for {}: use --output-dtype float32"
_MAX_OPEN = 4
_WINDOW_TEXTS = 2048  # that are sorted by length
_WINDOW_CHARS = 1 << 22  # no more rows are read into a window that has so many


class Shard:
    """One that is being read or computed.

    waiting     the texts that have no row yet, by their places
    refused     those that the server gave no row for
    num_unsent  rows without a text that could be sent
    """

    def __init__(self, number: int, plan: Plan) -> None:
        self.number = number
        self.waiting: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.num_unsent = 0
        self._size = len(plan.rows_of(number))
        self._ids: list[Any] = []
        self._failed: dict[int, str] = {}
        self._rows = np.zeros((self._size, plan.dimensions), plan.dtype)

    @property
    def room(self) -> int:
        """Rows that are not read yet."""
        return self._size - len(self._ids)

    @property
    def is_complete(self) -> bool:
        """Whether every row is read and has an answer."""
        return not self.room and not self.waiting

    def add(self, rows: Rows) -> Iterator[tuple[int, str]]:
        """The next rows; gives the places and texts of those to compute."""
        for key, text in zip(rows.ids, rows.texts, strict=True):
            place = len(self._ids)
            self._ids.append(key)
            if isinstance(text, BadText):
                self._failed[place] = text.reason
                self.num_unsent += 1
            else:
                self.waiting[place] = text
                yield place, text

    def put(self, places: list[int], rows: NDArray[np.float32]) -> None:
        """Rows of texts that waited: float32 [n, dimensions], NaN where the server refused one."""
        with np.errstate(over="ignore"):
            self._rows[places] = rows
        for place, row in zip(places, rows, strict=True):
            text = self.waiting.pop(place)
            if np.isnan(row[0]):
                self.refused[place] = text
            elif not np.isfinite(self._rows[place]).all():
                self._failed[place] = _TOO_LARGE.format(self._rows.dtype)

    def content(self, reasons_of: Callable[[list[str]], list[str]]) -> Content:
        """All of it; asks why texts were refused."""
        reasons = reasons_of(list(self.refused.values())) if self.refused else []
        failed = {**self._failed, **dict(zip(self.refused, reasons, strict=True))}
        return Content(self.number, self._ids, self._rows, failed)


class Shards:
    """The open shards of one run of neighbours. `texts` reads on as they are asked for; `put` takes the rows."""

    def __init__(self, plan: Plan, numbers: range, rows: Iterator[Rows]) -> None:
        """`rows` begin with the first of these shards."""
        self._plan = plan
        self._numbers = iter(numbers)
        self._rows = rows
        self._left: Rows | None = None  # read, and not in a shard yet
        self._open: dict[int, Shard] = {}
        self._places: dict[int, tuple[Shard, int]] = {}  # of texts that are computed, by their numbers in the stream
        self.is_over = False

    def texts(self) -> Iterator[str]:
        """Texts to compute. Ends early while many shards are open, as one text is tried again and again: then call it
        again, once all have their rows."""
        count = 0
        while len(self._open) <= _MAX_OPEN:
            number = next(self._numbers, None)
            if number is None:
                self.is_over = True
                return
            shard = self._open[number] = Shard(number, self._plan)
            while window := self._window(shard):
                for place, text in window:
                    self._places[count] = shard, place
                    count += 1
                    yield text

    def _window(self, shard: Shard) -> list[tuple[int, str]]:
        """Places and texts of the shard's next rows, the longest first, as an engine that pads computes texts of like
        length together. Empty when all rows of the shard are read."""
        window: list[tuple[int, str]] = []
        num_chars = 0
        while shard.room and len(window) < _WINDOW_TEXTS and num_chars < _WINDOW_CHARS:
            rows = list(shard.add(self._next(shard.room)))
            window += rows
            num_chars += sum(len(text) for _, text in rows)
        return sorted(window, key=lambda row: len(row[1]), reverse=True)

    def _next(self, most: int) -> Rows:
        rows = self._left or next(self._rows)
        self._left = rows.cut(most, len(rows)) if len(rows) > most else None
        return rows.cut(0, most)

    def put(self, part: Any) -> None:
        """A slice of `Client.iter_embed` over the newest `texts`."""
        found = [self._places.pop(number) for number in range(part.start, part.stop)]
        for shard in dict.fromkeys(shard for shard, _ in found):
            chosen = [at for at, (its, _) in enumerate(found) if its is shard]
            shard.put([found[at][1] for at in chosen], part.embeddings[chosen])

    def take_complete(self) -> list[Shard]:
        """Those whose rows are all there; they are the caller's from then on."""
        complete = [shard for shard in self._open.values() if shard.is_complete]
        for shard in complete:
            del self._open[shard.number]
        return complete
