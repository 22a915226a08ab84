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


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions that multiply bfloat16. Elsewhere libraries imitate them, which is slow."""
    flags = _cpu_info().get("flags", "").split()
    return "amx_bf16" in flags or "avx512_bf16" in flags


def max_int8_weight() -> int:
    """The largest int8 weight that this CPU multiplies without overflow.

    x86 without VNNI adds pairs of products in 16 bits, and 2 * 255 * 127 is too large for that.
    """
    flags = _cpu_info().get("flags", "").split()
    has_vnni = "avx512_vnni" in flags or "avx_vnni" in flags
    return 63 if platform.machine() == "x86_64" and not has_vnni else 127


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
