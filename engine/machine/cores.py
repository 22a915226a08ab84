"""How many cores this process may use. The only place that counts them, so nothing is sized for cores of others."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.machine import host


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The cores that this process may use."""

    num_processors: int  # that it may run on; those of one core run at the same time and share its arithmetic
    num_cores: int  # that these processors belong to
    quota: float | None  # seconds of computing in a second that its container allows; None = any number

    @property
    def usable(self) -> int:
        """Whole cores to plan with, at least 1."""
        return max(1, self.num_cores if self.quota is None else min(self.num_cores, int(self.quota)))

    @property
    def most_threads(self) -> int:
        """The threads that can compute at the same time, those that share a core included; at least 1."""
        return max(1, self.num_processors if self.quota is None else min(self.num_processors, int(self.quota)))

    def __str__(self) -> str:
        quota = "no quota" if self.quota is None else f"a quota of {self.quota:g}"
        return f"{self.num_processors} processors on {self.num_cores} cores, {quota}"


def find(root: Path = Path("/")) -> Cores:
    """Read now. `root` has proc and sys."""
    processors = os.sched_getaffinity(0)
    return Cores(
        num_processors=len(processors),
        num_cores=len({_siblings(processor, root) for processor in processors}),
        quota=min(_quotas(root), default=None),
    )


def usable() -> int:
    """Whole cores to plan with, at least 1."""
    return find().usable


def _siblings(processor: int, root: Path) -> str:
    """The processors of its core, as the kernel lists them."""
    file = root / "sys" / "devices" / "system" / "cpu" / f"cpu{processor}" / "topology" / "thread_siblings_list"
    return file.read_text().strip() if file.is_file() else str(processor)


def _quotas(root: Path) -> Iterator[float]:
    """The quota of each control group that has one: microseconds of computing a microsecond."""
    for folder in host.control_groups("cpu", root):
        both = host.text_of(folder / "cpu.max")
        both = both or f"{host.text_of(folder / 'cpu.cfs_quota_us')} {host.text_of(folder / 'cpu.cfs_period_us')}"
        quota, _, period = both.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):  # otherwise it is "max", or -1
            yield int(quota) / int(period)
