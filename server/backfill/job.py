"""One job from its options to its exit code: plan, compute what is not done, check, say what came out."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from embedline.client.preference import CancellationToken
from server.backfill import parts
from server.backfill.dry_run import estimate
from server.backfill.errors import BackfillError, RefusedJob
from server.backfill.locations import lies_in
from server.backfill.out import manifest
from server.backfill.out.files import Files
from server.backfill.out.folder import Folder
from server.backfill.out.opening import files_at
from server.backfill.plan import Plan
from server.backfill.progress import Progress
from server.backfill.servers import Served, Servers
from server.backfill.sinks.ids import check_ids
from server.backfill.sinks.opening import opened
from server.backfill.sinks.persistence import persistent
from server.backfill.sinks.sink import Sink
from server.backfill.source import Source
from server.backfill.work import Writer, check_whole, work

_MAX_SHARD_ROWS = 50_000
_SHARD_BYTES = 64 << 20  # of vectors: a process holds a few shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says of the job; how the model is served is not in it."""

    location: str
    out: str  # the folder of the job, or its URL
    sink: str | None  # URL of the database that gets the rows; None = they go to files
    table: str | None  # of PostgreSQL
    column: str
    id_column: str | None
    model: str | None  # of several at the URLs; None = there is one
    ask: Mapping[str, Any]  # fields of each request
    dtype: str  # float16, float32
    format: str  # parquet, npy; pgvector, qdrant
    shard_rows: int | None  # None = as many as make a part of a good size
    resume: bool
    worker: tuple[int, int]  # number, and of how many
    max_errors: int
    dry_run: bool


class Job:
    """Made before an engine is started, so that what is wrong is said at once. Then `run`."""

    def __init__(self, options: Options) -> None:
        """Raises RefusedJob."""
        _refuse_out_inside_in(options)
        self._options = options
        self._sink: Sink | None = None
        self._files = None if options.dry_run else _claimed(options)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process write to OUT."""
        if self._sink is not None:
            self._sink.close()
        if self._files is not None:
            self._files.close()

    def _prepare(self) -> None:
        options = self._options
        known = manifest.read(self._files) if self._files is not None else None
        if known is not None and not options.resume:
            raise RefusedJob("OUT has a job that was begun: --resume goes on with it")
        self._source = Source(options.location, column=options.column, id_column=options.id_column)
        self._source.plan(known.inputs if known is not None else ())
        if options.sink is not None and not options.dry_run:
            self._sink = opened(options.sink, options.table)
            if known is None and options.id_column is not None:
                check_ids(self._source)
        if known is not None:  # the model can be compared later alone
            known.check_same(self._plan(Served(known.model, known.dimensions)))

    def run(self, urls: Sequence[str], api_key: str | None, token: CancellationToken) -> int:
        """Have servers compute it. The exit code: 1 where more rows are bad than may be. The token stops it. Raises
        BackfillError. Once."""
        options = self._options
        with closing(self), Servers(urls, api_key, model=options.model, ask=options.ask, token=token) as servers:
            served = servers.described()
            if self._files is None:
                estimate(self._source, self._plan(served), servers, options.worker)
                return 0
            plan = self.begin(served)
            return self.finish(plan, lambda todo, progress: self.compute(plan, todo, servers, progress, token))

    def begin(self, served: Served) -> Plan:
        """What the job is, written to OUT unless it is there. Raises BackfillError."""
        assert self._files is not None
        plan = self._plan(served)
        manifest.begin(self._files, plan)
        if self._sink is not None:
            self._sink.begin(plan, may_create=not parts.done(self._files, plan, range(plan.num_shards)))
        return plan

    def compute(
        self, plan: Plan, shards: Sequence[int], servers: Servers, progress: Progress, token: CancellationToken
    ) -> None:
        """Write these. Raises BackfillError; what is written then stays."""
        assert self._files is not None
        put = persistent(self._sink, token) if self._sink is not None else None
        work(
            self._source,
            plan,
            shards,
            servers,
            Writer(self._files, plan, self._source, servers, progress, put),
            progress,
        )

    def finish(self, plan: Plan, compute: Callable[[Sequence[int], Progress], None]) -> int:
        """Have this worker's shards computed that are not there yet, and check them all; the exit code. Raises
        BackfillError."""
        assert self._files is not None
        files, mine = self._files, plan.shards_of(*self._options.worker)
        # of an earlier run, perhaps long ago; an object store has sums of its own
        done = parts.done(files, plan, mine, reads_rows=isinstance(files, Folder))
        progress = Progress(
            sum(len(plan.rows_of(shard)) for shard in mine), sum(counts.num_rows for counts in done.values())
        )
        progress.failed(sum(counts.num_failed for counts in done.values()))
        try:
            compute([shard for shard in mine if shard not in done], progress)
            num_failed = sum(counts.num_failed for counts in check_whole(files, plan, mine).values())
            whole = parts.done(files, plan, range(plan.num_shards))
            if len(whole) == plan.num_shards:
                if self._sink is not None:
                    _check_count(self._sink, sum(counts.num_rows - counts.num_failed for counts in whole.values()))
                parts.gather_errors(files, plan)
        except BaseException:
            progress.end("stopped")
            raise
        progress.end("done", job=plan.job, parts=plan.num_shards, parts_done=len(whole))
        return 0 if num_failed <= self._options.max_errors else 1

    def done(self, plan: Plan, shards: Sequence[int]) -> dict[int, parts.Counts]:
        """Those of these shards that are written."""
        assert self._files is not None
        return parts.done(self._files, plan, shards)

    def _plan(self, served: Served) -> Plan:
        options = self._options
        row_bytes = served.dimensions * (2 if options.dtype == "float16" else 4)
        return Plan(
            location=options.location,
            column=options.column,
            id_column=options.id_column,
            inputs=tuple(self._source.files),
            id_type=self._source.id_type,
            model=served.model,
            ask=options.ask,
            dimensions=served.dimensions,
            dtype=options.dtype,
            format=options.format,
            sink=self._sink.where if self._sink is not None else "",
            shard_rows=options.shard_rows or max(1, min(_MAX_SHARD_ROWS, _SHARD_BYTES // row_bytes)),
        )


def _refuse_out_inside_in(options: Options) -> None:
    """Its parts would be rows of the next job, and of this one when it goes on. Raises RefusedJob."""
    if lies_in(options.out, options.location):
        raise RefusedJob("OUT lies in IN, where its files would be taken for inputs: choose a folder elsewhere")


def _claimed(options: Options) -> Files:
    """Raises RefusedJob."""
    files = files_at(options.out)
    files.claim("{}-of-{}".format(*options.worker))
    return files


def _check_count(sink: Sink, least: int) -> None:
    """Raises BackfillError where rows that were put are no longer there."""
    if (found := sink.num_rows()) < least:
        raise BackfillError(f"{sink.where} has {found} rows, and {least} were put there: something removed them")
