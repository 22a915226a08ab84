"""The plan of a job: its inputs, how its rows are made and written. All that its output depends on, and nothing
else."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.features.backfill.errors import RefusedJob
from server.features.backfill.source import InputFile

_VERSION = 1  # of the manifest
_IN_WORDS = {"inputs": "an input has changed", "model": "the model is another", "version": "another version made it"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One job."""

    location: str  # of the input
    column: str  # with the texts
    id_column: str | None  # None = rows are numbered
    inputs: tuple[InputFile, ...]
    id_type: str  # Arrow's name
    model: Mapping[str, str]  # the server's fingerprint with its parts, and the engine
    ask: Mapping[str, Any]  # fields of each request, as dimensions and prompt_name
    dimensions: int  # of a row
    dtype: str  # float16 or float32, as rows are written
    format: str  # parquet, npy; pgvector, qdrant
    sink: str  # where the database is, in words; "" = rows go to files
    shard_rows: int  # of a part, but for the last
    version: int = _VERSION

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.inputs)

    @property
    def num_shards(self) -> int:
        return -(-self.num_rows // self.shard_rows)

    def rows_of(self, shard: int) -> range:
        """The numbers of the shard's rows."""
        return range(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.num_rows))

    @property
    def job(self) -> str:
        """The job's id: two jobs with the same one write the same files."""
        return hashlib.sha256(_as_json(dataclasses.asdict(self)).encode()).hexdigest()[:16]

    def as_json(self) -> str:
        """The manifest, for `from_json`."""
        fields = {"job": self.job, "num_rows": self.num_rows, **dataclasses.asdict(self)}
        return json.dumps(fields, indent=1) + "\n"

    def shards_of(self, worker: int, num_workers: int) -> range:
        """Neighbours, so that each worker reads its part of the input alone."""
        return range(worker * self.num_shards // num_workers, (worker + 1) * self.num_shards // num_workers)

    def check_same(self, other: "Plan") -> None:
        """Raises RefusedJob where `other`, which is planned now, is not this job, which OUT has."""
        for field in dataclasses.fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            if _as_json(_plain(ours)) != _as_json(_plain(theirs)):
                words = _IN_WORDS.get(field.name, f"{field.name} was {ours}, and is {theirs}")
                raise RefusedJob(f"OUT is of another job: {words}{_difference(field.name, ours, theirs)}")


def from_json(text: str) -> Plan:
    """The plan of a manifest. Raises ValueError, KeyError and TypeError for what is no manifest."""
    fields = json.loads(text)
    job, _ = fields.pop("job"), fields.pop("num_rows")
    plan = Plan(**{**fields, "inputs": tuple(InputFile(**file) for file in fields["inputs"])})
    if plan.job != job:
        raise ValueError("it was changed by hand")
    return plan


def _difference(name: str, ours: Any, theirs: Any) -> str:
    if name == "model":
        keys = [key for key in ours if ours[key] != theirs.get(key) and key != "id"]
        return ": " + ", ".join(f"its {key} was {ours[key]}, and is {theirs.get(key)}" for key in keys)
    if name == "inputs":
        before, now = {file.path: file for file in ours}, {file.path: file for file in theirs}
        changed = [path for path in sorted({*before, *now}) if before.get(path) != now.get(path)]
        return f": {', '.join(changed[:3])}"
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [dataclasses.asdict(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
