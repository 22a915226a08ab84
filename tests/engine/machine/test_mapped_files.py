"""The pages of a mapped file are given back, and can be read again."""

import mmap
from pathlib import Path

import pytest

from engine.machine import host

SIZE = 1 << 20


def resident(file: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    found, is_it = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            is_it = line.endswith(str(file))
        elif is_it and first == "Rss:":
            found += 1024 * int(rest[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads /proc/self/smaps")
def test_pages_are_given_back_and_read_again(tmp_path: Path) -> None:
    file, other = tmp_path / "weights.bin", tmp_path / "other.bin"
    content = b"weights " * (SIZE // 8)
    for each in (file, other):
        each.write_bytes(content)
    with (
        file.open("rb") as opened,
        other.open("rb") as its_neighbour,
        mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        mmap.mmap(its_neighbour.fileno(), 0, prot=mmap.PROT_READ) as beside,
    ):
        assert mapped[:] == beside[:] == content
        assert resident(file) == resident(other) == SIZE

        host.release_mapped(file)

        assert resident(file) == 0
        assert resident(other) == SIZE
        assert mapped[:] == content


def test_written_pages_stay(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(SIZE))
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[:7] = b"written"

        host.release_mapped(file)

        assert mapped[:7] == b"written"
