"""How much memory can still be had here: the machine's, or what is left of its container's limit if that is less."""

from collections.abc import Iterator
from pathlib import Path

from engine.machine import control_groups

# Files of a control group: its limit, what is used, and in memory.stat the row of pages of files that nobody used
# lately. Version 2 and 1.
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory(root: Path = Path("/")) -> int:
    """Bytes. Pages of files that nobody used lately count as free, since the kernel drops them first."""
    rows = (line.split() for line in _text(root / "proc" / "meminfo").splitlines())
    available = next(int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:")
    return max(0, min((available, *_left(root))))


def _left(root: Path) -> Iterator[int]:
    """Of each limit that holds for this process."""
    for folder in control_groups.folders("memory", root):
        for limit, used, unused_files in _VERSIONS:
            most, now = _text(folder / limit), _text(folder / used)
            if most.isdecimal() and now.isdecimal():
                rows = (line.split() for line in _text(folder / "memory.stat").splitlines())
                yield int(most) - int(now) + next((int(row[1]) for row in rows if row[0] == unused_files), 0)


def _text(file: Path) -> str:
    """What is in a file; "" if there is none."""
    return file.read_text().strip() if file.is_file() else ""
