"""The work of one process: reads, has computed, writes, and shows how far it is; each shard is committed whole.

Rows come in any order, and are put back into their shards. Shards are one thread's.
"""

import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from embedline.progress import LINE_SECONDS, Interval, bar
from server.features.backfill import parts
from server.features.backfill.errors import BackfillError
from server.features.backfill.output import Files, check_manifest
from server.features.backfill.parts import Content
from server.features.backfill.plan import Plan
from server.features.backfill.readers import BadText, Rows
from server.features.backfill.servers import Servers, told
from server.features.backfill.source import Source


class Progress:
    """Shows how far one process is: a bar on a terminal, else a JSON object a line, every ten seconds and at the end.

    Rows that earlier processes have done count as done, and not for the speed.
    """

    def __init__(
        self, num_rows: int, num_done: int, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`num_rows`: all that this worker has to do, those that are done included."""
        self._stream = sys.stdout if stream is None else stream
        self._clock = clock
        self._num_rows, self._num_done, self._num_before = num_rows, num_done, num_done
        self._num_tokens = self._num_failed = self._num_truncated = 0
        self._began = clock()
        self._interval = Interval(LINE_SECONDS, clock)
        columns = ("MofNCompleteColumn", "BarColumn", "{task.fields[words]}", "TimeRemainingColumn")
        self._bar = bar(self._stream, *columns)
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task("rows", total=num_rows, completed=num_done, words="")

    def computed(self, num_rows: int, *, num_tokens: int = 0, num_truncated: int = 0) -> None:
        """Count so many more rows that have their answer."""
        self._num_done += num_rows
        self._num_tokens += num_tokens
        self._num_truncated += num_truncated
        if self._bar is not None:
            words = f"{self._speed(self._num_tokens):,.0f} tokens/s"
            self._bar.update(self._bar.task_ids[0], completed=self._num_done, words=words)
        elif self._interval.is_over():
            self._print({"event": "progress", **self.figures()})

    def failed(self, num_rows: int, *, num_unsent: int = 0) -> None:
        """Count so many of the rows that have no vector. Those that were sent to no engine are done by that."""
        self._num_failed += num_rows
        self._num_done += num_unsent

    def end(self, event: str, **more: Any) -> None:
        """The last line."""
        if self._bar is not None:
            self._bar.stop()
        self._print({"event": event, **self.figures(), **more})

    def figures(self) -> Mapping[str, Any]:
        """The figures as they are printed."""
        speed = self._speed(self._num_done - self._num_before)
        return {
            "rows": self._num_done,
            "of": self._num_rows,
            "failed": self._num_failed,
            "truncated": self._num_truncated,
            "tokens": self._num_tokens,
            "rows_per_second": round(speed, 1),
            "tokens_per_second": round(self._speed(self._num_tokens), 1),
            "seconds": round(self._clock() - self._began, 1),
            "seconds_left": round((self._num_rows - self._num_done) / speed) if speed else None,
        }

    def _speed(self, count: int) -> float:
        return count / max(self._clock() - self._began, 1e-9)

    def _print(self, fields: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(fields) + "\n")
        self._stream.flush()


_TOO_LARGE = "a number of its row is too large for {}: use --output-dtype float32"
_MAX_OPEN = 4
_WINDOW_TEXTS = 2048  # that are sorted by length
_WINDOW_CHARS = 1 << 22  # no more rows are read into a window that has so many
_MAX_UNWRITTEN = 2  # shards that wait for the disk


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
        """The whole content of the shard; asks why texts were refused."""
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
        """Yields texts to compute. Ends early while many shards are open, as one text is tried again and again: then
        call it again, once all have their rows."""
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
        """Give the shards whose rows are all there; they are the caller's from then on."""
        complete = [shard for shard in self._open.values() if shard.is_complete]
        for shard in complete:
            del self._open[shard.number]
        return complete


class Writer:
    """Commits complete shards in a thread of its own, so that the engine never waits for the disk.

    `put`: takes the rows of a shard where they go to a database."""

    def __init__(
        self,
        files: Files,
        plan: Plan,
        source: Source,
        servers: Servers,
        progress: Progress,
        put: Callable[[parts.Content], None] | None = None,
    ) -> None:
        self._files, self._plan, self._source = files, plan, source
        self._servers, self._progress, self._put = servers, progress, put
        self._thread = ThreadPoolExecutor(1, "embedline writer")
        self._pending: deque[Future[None]] = deque()

    def write(self, shards: Sequence[Shard]) -> None:
        """Soon; waits while too many are waiting. Raises what an earlier one failed with."""
        for shard in shards:
            while len(self._pending) >= _MAX_UNWRITTEN:
                self._pending.popleft().result()
            self._pending.append(self._thread.submit(self._commit, shard))

    def finish(self) -> None:
        """Return once everything is written. Raises what writing failed with."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Finish what has begun to be written, and drop the rest."""
        self._thread.shutdown(cancel_futures=True)

    def _commit(self, shard: Shard) -> None:
        content = shard.content(self._servers.reasons)
        self._source.check(self._plan.rows_of(shard.number))
        self._servers.check_still(self._plan.model)  # a server that was replaced meanwhile computed some of these rows
        check_manifest(self._files, self._plan)
        parts.write(self._files, self._plan, content, self._put)
        self._progress.failed(len(content.failed), num_unsent=shard.num_unsent)


def work(source: Source, plan: Plan, todo: Sequence[int], servers: Servers, writer: Writer, progress: Progress) -> None:
    """Compute these shards. Raises BackfillError; what is written then stays."""
    try:
        for numbers in _neighbours(todo):
            first = plan.rows_of(numbers.start).start
            shards = Shards(plan, numbers, source.read(first))
            while not shards.is_over:
                for part in _computed(servers, shards, progress):
                    shards.put(part)
                    writer.write(shards.take_complete())
                writer.write(shards.take_complete())  # those without a text to compute
        writer.finish()
    finally:
        writer.close()


def _computed(servers: Servers, shards: Shards, progress: Progress) -> Iterator[Any]:
    with told(), contextlib.closing(servers.embed(shards.texts())) as slices:
        for part in slices:
            tokens, truncated = part.prompt_tokens or 0, part.truncated_inputs or 0
            progress.computed(part.stop - part.start, num_tokens=tokens, num_truncated=truncated)
            yield part


def _neighbours(numbers: Sequence[int]) -> Iterator[range]:
    """The runs of neighbours: 0, 1, 2, 5, 6 are 0 to 2 and 5 to 6. A reader begins once for each."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield range(found[0], found[-1] + 1)


def check_whole(files: Files, plan: Plan, shards: Sequence[int]) -> dict[int, parts.Counts]:
    """Read back what was written. Raises BackfillError where rows out are not rows in."""
    found = parts.done(files, plan, shards)
    lost = [shard for shard in shards if shard not in found]
    if lost:
        raise BackfillError(f"{len(lost)} part(s) are not as they were written, the first is number {lost[0]}")
    return found
