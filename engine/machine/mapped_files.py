"""Gives back memory that a library holds by mapping a file."""

import ctypes
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_MADV_DONTNEED = 4  # of Linux, on all architectures but Alpha


def release(file: Path) -> None:
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
