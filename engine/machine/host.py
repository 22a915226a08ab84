"""This machine's CPU and memory, read from /proc and /sys."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from engine.machine import control_groups

_KEYS = frozenset(("model name", "flags", "CPU implementer", "CPU part", "Features"))


def cpu() -> dict[str, str]:
    """The first CPU's architecture, model and features."""
    return {"machine": platform.machine(), **{key: text for key, text in _cpu_info().items() if key in _KEYS}}


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
    return min((os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_memory_limits(root)))


def _memory_limits(root: Path) -> Iterator[int]:
    """In bytes."""
    for folder in control_groups.folders("memory", root):
        for limit in (folder / "memory.max", folder / "memory.limit_in_bytes"):
            text = limit.read_text().strip() if limit.is_file() else ""
            if text.isdecimal():
                yield int(text)


def _cpu_info() -> dict[str, str]:
    file = Path("/proc/cpuinfo")
    first, _, _ = file.read_text().partition("\n\n") if file.is_file() else ("", "", "")
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
