"""What processes cost, out of Linux's /proc: CPU seconds and memory of a process with all that came of it."""

import contextlib
import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, and of those of its children that have ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICK if fields else 0.0


def tree(pid: int) -> list[int]:
    """A process and all its living descendants."""
    found = [pid]
    for parent in found:  # grows while it is read
        for thread in Path(f"/proc/{parent}/task").glob("*"):
            found += map(int, _read(str(thread / "children")).split())
    return found


def tree_cpu_seconds(pid: int) -> float:
    """Of the whole tree."""
    return sum(map(cpu_seconds, tree(pid)))


def cpu_by_title(pid: int) -> dict[str, float]:
    """CPU seconds of each process of an Embedline server whose supervisor is `pid`, by the title that `ps` shows."""
    return {title: cpu_seconds(one) for title, one in _by_title(pid).items()}


def pss_mb_by_title(pid: int) -> dict[str, float]:
    """The same for the proportional set size now."""
    return {title: _pss_mb(one) for title, one in _by_title(pid).items()}


def _by_title(pid: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in tree(pid):
        title = _read(f"/proc/{one}/cmdline").rstrip("\0").removeprefix("embedline: ")
        found["supervisor" if one == pid else title] = one
    return dict(sorted(found.items()))


def tree_pss_mb(pid: int) -> float:
    """Proportional set size now: what several processes share counts once. MB = 1e6 bytes."""
    return sum(map(_pss_mb, tree(pid)))


def _pss_mb(pid: int) -> float:
    return _field(f"/proc/{pid}/smaps_rollup", "Pss:") * 1024 / 1e6


def tree_peak_rss_mb(pid: int) -> float:
    """The sum of each process's own highest resident size: what is shared counts in each. MB = 1e6 bytes."""
    return sum(_field(f"/proc/{one}/status", "VmHWM:") for one in tree(pid)) * 1024 / 1e6


def forget_tree_peaks(pid: int) -> None:
    """Each process's highest resident size counts anew from its size now."""
    for one in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            Path(f"/proc/{one}/clear_refs").write_text("5")


def machine_cpu_seconds() -> float:
    """What all cores together have worked, for anybody, or were kept from working by the host."""
    user, nice, system, _, _, irq, softirq, steal = map(int, _read("/proc/stat").split(None, 9)[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICK


def _field(path: str, name: str) -> int:
    return next((int(line.split()[1]) for line in _read(path).splitlines() if line.startswith(name)), 0)


def _read(path: str) -> str:
    """Nothing where the process has ended."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
