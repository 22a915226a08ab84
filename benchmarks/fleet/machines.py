"""Types of machines: how fast one computes, how long it takes to start, what an hour costs.

Figures are either measured, and then say where, or assumptions, and then say so. A TOML file adds types of one's own.
"""

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from engine.types import MAX_NUM_SEQS, EngineLimits


class MachineError(ValueError):
    """A file of machines is wrong; the message is one line that names the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One replica's machine. A batch takes `batch_seconds` and its tokens over `tokens_per_second`."""

    name: str
    tokens_per_second: float  # of all engines together, in large batches
    batch_seconds: float  # fixed cost of a batch
    start_seconds: float  # from the order of a machine to its first answer
    price_per_hour: float  # in any currency
    source: str  # where the figures come from
    num_engines: int = 1  # each computes one batch at a time, at its part of tokens_per_second
    max_batch_tokens: int = 16_384
    request_seconds: float = 0.0  # that HTTP and the processes between add to each request
    tokenized_per_second: float = math.inf  # tokens of one request, before any of them goes to an engine

    def __post_init__(self) -> None:
        for name in ("tokens_per_second", "num_engines", "max_batch_tokens", "tokenized_per_second"):
            if not getattr(self, name) > 0:
                raise MachineError(f"{name} of {self.name!r} must be above 0")
        for name in ("batch_seconds", "start_seconds", "price_per_hour", "request_seconds"):
            if not getattr(self, name) >= 0:
                raise MachineError(f"{name} of {self.name!r} must be 0 or more")

    def seconds_of(self, num_tokens: int) -> float:
        """How long one engine computes a batch."""
        return self.batch_seconds + num_tokens * self.num_engines / self.tokens_per_second

    def host_seconds(self, num_tokens: int) -> float:
        """How long a request takes besides its wait and its batches."""
        return self.request_seconds + num_tokens / self.tokenized_per_second

    @property
    def limits(self) -> EngineLimits:
        """What an engine says of itself to the batch manager."""
        full = self.max_batch_tokens
        return EngineLimits(
            max_num_tokens=full,
            max_num_seqs=MAX_NUM_SEQS,
            max_seqlen=full,
            tokens_per_second=full / self.seconds_of(full),
            target_num_tokens=full,
        )


_KNOWN = (
    Machine(
        name="cpu",
        tokens_per_second=7_090.0,
        batch_seconds=0.003,
        start_seconds=60.0,
        price_per_hour=0.10,
        source="tokens a second: all-MiniLM-L6-v2 on two Zen 4 cores, engine alone on mixed lengths, measured "
        "(benchmarks/results/backfill_cpu-2core_2026-11-24.md); a batch's cost, start and price are assumptions",
    ),
    Machine(
        name="gpu",
        tokens_per_second=200_000.0,
        batch_seconds=0.002,
        start_seconds=180.0,
        price_per_hour=2.50,
        source="all figures are assumptions: the server was not measured on a GPU",
    ),
)


def known(file: Path | None = None) -> dict[str, Machine]:
    """By name; those of the file replace ours. Raises MachineError, OSError."""
    machines = {machine.name: machine for machine in _KNOWN}
    if file is not None:
        try:
            tables = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise MachineError(f"{file.name} is not TOML: {error}") from None
        machines |= {name: _read(name, table) for name, table in tables.items()}
    return machines


def _read(name: str, table: object) -> Machine:
    if not isinstance(table, dict):
        raise MachineError(f"{name} must be a table")
    wanted = {one.name: one.type for one in fields(Machine) if one.name != "name"}
    for key, value in table.items():
        if key not in wanted:
            raise MachineError(f"{name}.{key} is unknown; there are {', '.join(wanted)}")
        right = str if wanted[key] is str else (int, float) if wanted[key] is float else int
        if not isinstance(value, right) or isinstance(value, bool):
            raise MachineError(f"{name}.{key} has the wrong type")
    try:
        return Machine(name=name, **table)
    except TypeError as error:
        raise MachineError(f"{name}: {str(error).partition('() ')[2]}") from None
