"""What a job would take, from a sample of its rows: nothing is written."""

import io
import time

import numpy as np

from server.backfill import parts
from server.backfill.plan import Plan
from server.backfill.progress import Progress
from server.backfill.servers import Servers, told
from server.backfill.source import Source

_PLACES = 4
_ROWS_OF_A_PLACE = 256


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
        left = min(_ROWS_OF_A_PLACE, stop - start)
        for rows in source.read(start):
            found = [text for text in rows.cut(0, left).texts if isinstance(text, str)]
            texts += found
            num_bad += min(left, len(rows)) - len(found)
            left -= min(left, len(rows))
            if not left:
                break
    return texts, num_bad


def _num_bytes(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]], plan: Plan) -> int:
    """Of these rows, as a part holds them; ids count for little."""
    if plan.format != "parquet" or not len(rows):
        return rows.size * np.dtype(plan.dtype).itemsize
    stream = io.BytesIO()
    with np.errstate(over="ignore"):
        parts.write_table({"embedding": parts.vectors(rows.astype(plan.dtype), ~np.isnan(rows[:, 0]))}, stream)
    return stream.tell()
