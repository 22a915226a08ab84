"""Digests of files: of all their bytes, or of samples of them. Knows nothing of what is in them."""

import hashlib
from pathlib import Path

_BLOCK = 64 << 10  # bytes
_NUM_BLOCKS = 64


def whole(file: Path) -> str:
    """Of every byte. Raises OSError."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sampled(file: Path) -> str:
    """Of the size, and of 64 blocks of 64 KiB spread evenly from the first byte to the last. Raises OSError."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    last = max(0, size - _BLOCK)
    with file.open("rb", buffering=0) as stream:
        for number in range(_NUM_BLOCKS):
            stream.seek(last * number // (_NUM_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()
