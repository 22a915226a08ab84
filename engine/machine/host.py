"""This machine's CPU and memory, read from /proc and /sys: what there is, what is allowed, and what is free."""

import ctypes
import os
import platform
from collections.abc import Iterator
from pathlib import Path

_CPU_KEYS = frozenset(("model name", "flags", "CPU implementer", "CPU part", "Features"))
# Files of a control group: its limit, what is used, and in memory.stat the row of pages of files that nobody used
# lately. Version 2 and 1.
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_MAPS = Path("/proc/self/maps")
_MADV_DONTNEED = 4  # of Linux, on all architectures but Alpha


def cpu() -> dict[str, str]:
    """The first CPU's architecture, model and features."""
    return {"machine": platform.machine(), **{key: text for key, text in _cpu_info().items() if key in _CPU_KEYS}}


def has_amx() -> bool:
    """Whether an x86 CPU multiplies tiles of bfloat16."""
    return "amx_bf16" in _cpu_info().get("flags", "").split()


def multiplies_bfloat16() -> bool:
    """Whether this CPU has the instructions of x86 that multiply bfloat16. Elsewhere libraries imitate them, which is
    slow. False for every ARM CPU, those with bf16 too: it was measured on none."""
    flags = _cpu_info().get("flags", "").split()
    return "amx_bf16" in flags or "avx512_bf16" in flags


def multiplies_int8() -> bool:
    """Whether this CPU has the instructions of x86 that multiply and add 8-bit numbers. False for every ARM CPU, those
    with asimddp or i8mm too: int8 was measured on none."""
    flags = _cpu_info().get("flags", "").split()
    return any(flag in flags for flag in ("avx512_vnni", "avx_vnni", "amx_int8"))


def memory(root: Path = Path("/")) -> int:
    """Bytes that this process may use: the machine's memory, or the least limit of its control groups if that is less.

    `root` has proc and sys.
    """
    return min((os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *(most for most, _ in _limits(root))))


def _cpu_info() -> dict[str, str]:
    file = Path("/proc/cpuinfo")
    first, _, _ = file.read_text().partition("\n\n") if file.is_file() else ("", "", "")
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def free_memory(root: Path = Path("/")) -> int:
    """Bytes. Pages of files that nobody used lately count as free, since the kernel drops them first."""
    rows = (line.split() for line in text_of(root / "proc" / "meminfo").splitlines())
    available = next(int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:")
    return max(0, min((available, *(left for _, left in _limits(root)))))


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Each limit that holds for this process, and what is left under it; bytes."""
    for folder in control_groups("memory", root):
        for limit, used, unused_files in _VERSIONS:
            most, now = text_of(folder / limit), text_of(folder / used)
            if most.isdecimal():
                rows = (line.split() for line in text_of(folder / "memory.stat").splitlines())
                unused = next((int(row[1]) for row in rows if row[0] == unused_files), 0)
                yield int(most), int(most) - (int(now) if now.isdecimal() else 0) + unused


def text_of(file: Path) -> str:
    """The text of a file; "" if there is none."""
    return file.read_text().strip() if file.is_file() else ""


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The control groups whose limits hold for this process, of both versions, each before the one around it.

    `controller` is the kernel's name, such as cpu or memory. Some folders may not be there: a container sees its own
    group as the outermost.
    """
    mounted = root / "sys" / "fs" / "cgroup"
    file = root / "proc" / "self" / "cgroup"
    for line in file.read_text().splitlines() if file.is_file() else ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops = (mounted, mounted / "unified")
        elif controller in controllers.split(","):
            tops = (mounted / controller, mounted / controllers)
        else:
            continue
        for top in dict.fromkeys(tops):
            own = top / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def release_freed() -> None:
    """Give memory back that was freed and that the allocator keeps for later, as far as the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def release_mapped(file: Path) -> None:
    """Release the pages of a file that this process has mapped to read. What is read again comes from the file again.

    Does nothing where there is no /proc, nor to pages that could have been written.
    """
    if not _MAPS.exists():
        return
    libc = ctypes.CDLL(None)
    name = str(file.resolve())
    for line in _MAPS.read_text().splitlines():
        addresses, permissions, *_, path = line.split(maxsplit=5)
        if path == name and "w" not in permissions:
            start, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
