"""One job from its options to its exit code: plan, compute what is not done, check, say what came out.

Also how far a job is, read from its folder alone (`print_status`), and what one would take, by a sample (`estimate`).
"""

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedline.client.preference import CancellationToken
from server.features.backfill import parts
from server.features.backfill.errors import BackfillError, RefusedJob
from server.features.backfill.locations import lies_in
from server.features.backfill.output import Folder, begin_manifest, files_at, read_manifest
from server.features.backfill.plan import Plan
from server.features.backfill.servers import Served, Servers, told
from server.features.backfill.sinks import Sink, check_ids, opened, persistent
from server.features.backfill.source import Source
from server.features.backfill.work import Progress, Writer, check_whole, work

_PLACES = 4
_SHARD_BYTES = 64 << 20  # of vectors: a process holds a few shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the job on the command line; how the model is served is not in it."""

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
    """One job. It is made before an engine is started, so that what is wrong is said at once, and then run."""

    def __init__(self, options: Options) -> None:
        """Raises RefusedJob."""
        if lies_in(options.out, options.location):  # its parts would be rows of the next job, and of this one later
            raise RefusedJob("OUT lies in IN, where its files would be taken for inputs: choose a folder elsewhere")
        self._options = options
        self._sink: Sink | None = None
        self._files = None if options.dry_run else files_at(options.out)
        try:
            if self._files is not None:
                self._files.claim("{}-of-{}".format(*options.worker))
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
        known = read_manifest(self._files) if self._files is not None else None
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
        """Have servers compute the rows, once, and return the exit code: 1 where more rows are bad than may be. The
        token stops it. Raises BackfillError. Once."""
        options = self._options
        with closing(self), Servers(urls, api_key, model=options.model, ask=options.ask, token=token) as servers:
            served = servers.described()
            if self._files is None:
                estimate(self._source, self._plan(served), servers, options.worker)
                return 0
            plan = self.begin(served)
            return self.finish(plan, lambda todo, progress: self.compute(plan, todo, servers, progress, token))

    def begin(self, served: Served) -> Plan:
        """The plan of the job, written to OUT unless it is there. Raises BackfillError."""
        assert self._files is not None
        plan = self._plan(served)
        begin_manifest(self._files, plan)
        if self._sink is not None:
            self._sink.begin(plan, may_create=not parts.done(self._files, plan, range(plan.num_shards)))
        return plan

    def compute(
        self, plan: Plan, shards: Sequence[int], servers: Servers, progress: Progress, token: CancellationToken
    ) -> None:
        """Write these shards. Raises BackfillError; what is written then stays."""
        assert self._files is not None
        put = persistent(self._sink, token) if self._sink is not None else None
        writer = Writer(self._files, plan, self._source, servers, progress, put)
        work(self._source, plan, shards, servers, writer, progress)

    def finish(self, plan: Plan, compute: Callable[[Sequence[int], Progress], None]) -> int:
        """Compute this worker's shards that are missing, check them all; the exit code. Raises BackfillError."""
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
            shard_rows=options.shard_rows or max(1, min(50_000, _SHARD_BYTES // row_bytes)),
        )


def _check_count(sink: Sink, least: int) -> None:
    """Raises BackfillError where rows that were put are no longer there."""
    if (found := sink.num_rows()) < least:
        raise BackfillError(f"{sink.where} has {found} rows, and {least} were put there: something removed them")


def print_status(out: str) -> None:
    """One JSON object. Raises RefusedJob where no job has begun."""
    files = files_at(out)
    plan = read_manifest(files)
    if plan is None:
        raise RefusedJob("OUT has no job")
    done = parts.done(files, plan, range(plan.num_shards))
    facts = {
        "event": "status",
        "job": plan.job,
        "rows": sum(counts.num_rows for counts in done.values()),
        "of": plan.num_rows,
        "failed": sum(counts.num_failed for counts in done.values()),
        "parts": plan.num_shards,
        "parts_done": len(done),
        "is_done": len(done) == plan.num_shards,
        "model": dict(plan.model),
    }
    print(json.dumps(facts))


def estimate(source: Source, plan: Plan, servers: Servers, worker: tuple[int, int]) -> None:
    """Print seconds, bytes and tokens of this worker's rows. Raises BackfillError."""
    num_rows = sum(len(plan.rows_of(shard)) for shard in plan.shards_of(*worker))
    texts, num_bad = _sample(source)
    progress = Progress(len(texts) + num_bad, num_bad)
    began, found = time.perf_counter(), []
    with told():
        for part in servers.embed(texts):
            found.append(part.embeddings)
            progress.computed(len(part.embeddings), num_tokens=part.prompt_tokens or 0)
    seconds = time.perf_counter() - began
    share = num_rows / max(1, len(texts) + num_bad)
    rows = np.concatenate(found) if found else np.zeros((0, plan.dimensions), np.float32)
    progress.end(
        "estimate",
        job_rows=num_rows,
        job_seconds=round(seconds * share, 1),
        job_bytes=round(_num_bytes(rows, plan) * share),
        job_parts=len(plan.shards_of(*worker)),
        dimensions=plan.dimensions,
        engine=plan.model["engine"],
        bad_rows_in_sample=num_bad + int(np.isnan(rows[:, 0]).sum()),
    )


def _sample(source: Source) -> tuple[list[str], int]:
    """Texts from several places of the input, and how many rows there had none."""
    texts: list[str] = []
    num_bad = 0
    starts = {place * source.num_rows // _PLACES for place in range(_PLACES)} if source.num_rows else set()
    for start, stop in zip(sorted(starts), [*sorted(starts)[1:], source.num_rows], strict=True):
        left = min(256, stop - start)
        for rows in source.read(start):
            found = [text for text in rows.cut(0, left).texts if isinstance(text, str)]
            texts += found
            num_bad += min(left, len(rows)) - len(found)
            left -= min(left, len(rows))
            if not left:
                break
    return texts, num_bad


def _num_bytes(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]], plan: Plan) -> int:
    """The bytes of these rows, as a part holds them; ids count for little."""
    if plan.format != "parquet" or not len(rows):
        return rows.size * np.dtype(plan.dtype).itemsize
    stream = io.BytesIO()
    with np.errstate(over="ignore"):
        parts.write_table({"embedding": parts.vectors(rows.astype(plan.dtype), ~np.isnan(rows[:, 0]))}, stream)
    return stream.tell()
