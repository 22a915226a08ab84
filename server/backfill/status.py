"""How far a job is, read from its folder alone: no engine, no lock, no input."""

import json

from server.backfill import parts
from server.backfill.errors import RefusedJob
from server.backfill.out import manifest
from server.backfill.out.opening import files_at


def print_status(out: str) -> None:
    """One JSON object. Raises RefusedJob where no job has begun."""
    files = files_at(out)
    plan = manifest.read(files)
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
