"""The work of one process: reads, has computed, writes; each shard is committed whole."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import Any

from server.backfill import parts
from server.backfill.errors import BackfillError
from server.backfill.out import manifest
from server.backfill.out.files import Files
from server.backfill.plan import Plan
from server.backfill.progress import Progress
from server.backfill.servers import Servers, told
from server.backfill.shards import Shard, Shards
from server.backfill.source import Source

_MAX_UNWRITTEN = 2  # shards that wait for the disk


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

    def write(self, shard: Shard) -> None:
        """Soon; waits while too many are waiting. Raises what an earlier one failed with."""
        while len(self._pending) >= _MAX_UNWRITTEN:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._commit, shard))

    def finish(self) -> None:
        """Once everything is written. Raises what writing failed with."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """What has begun to be written is finished, the rest dropped."""
        self._thread.shutdown(cancel_futures=True)

    def _commit(self, shard: Shard) -> None:
        content = shard.content(self._servers.reasons)
        self._source.check(self._plan.rows_of(shard.number))
        self._servers.check_still(self._plan.model)  # a server that was replaced meanwhile computed some of these rows
        manifest.check(self._files, self._plan)
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
                    _write(shards, writer)
                _write(shards, writer)  # those without a text to compute
        writer.finish()
    finally:
        writer.close()


def _computed(servers: Servers, shards: Shards, progress: Progress) -> Iterator[Any]:
    with told(), contextlib.closing(servers.embed(shards.texts())) as slices:
        for part in slices:
            progress.computed(
                part.stop - part.start,
                num_tokens=part.prompt_tokens or 0,
                num_truncated=part.truncated_inputs or 0,
            )
            yield part


def _write(shards: Shards, writer: Writer) -> None:
    for shard in shards.take_complete():
        writer.write(shard)


def _neighbours(numbers: Sequence[int]) -> Iterator[range]:
    """0, 1, 2, 5, 6 are 0 to 2 and 5 to 6: a reader begins once for each."""
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
