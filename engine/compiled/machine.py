"""What this machine's CPU is and can do, as the kernel tells it of the first one."""

import platform
from pathlib import Path

_KEYS = frozenset(("model name", "flags", "CPU implementer", "CPU part", "Features"))


def cpu() -> dict[str, str]:
    """Model and features."""
    return {"machine": platform.machine(), **{key: text for key, text in _cpu_info().items() if key in _KEYS}}


def max_int8_weight() -> int:
    """Up to where int8 weights may go on this CPU.

    x86 without VNNI multiplies bytes in pairs and adds them in 16 bits, and 2 * 255 * 127 would be too many.
    """
    flags = _cpu_info().get("flags", "").split()
    has_vnni = "avx512_vnni" in flags or "avx_vnni" in flags
    return 63 if platform.machine() == "x86_64" and not has_vnni else 127


def _cpu_info() -> dict[str, str]:
    file = Path("/proc/cpuinfo")
    first, _, _ = file.read_text().partition("\n\n") if file.is_file() else ("", "", "")
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
