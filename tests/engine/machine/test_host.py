"""The memory that this process may use, what is left of it, and the pages of mapped files. Files stand in for /proc."""

import mmap
from pathlib import Path

import pytest

from engine.machine import host
from tests.engine.folder_files import put

MIB = SIZE = 1 << 20
MACHINE = host.memory(Path("/nowhere"))
GROUP = "sys/fs/cgroup/a/b"


def test_without_a_limit_it_is_the_machines() -> None:
    assert MACHINE > 1 << 28


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "4096\n"}, 4096),  # as a container sees its own group
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "8192\n", "memory.max": "9000\n"}, 8192),
        ("0::/a/b\n", {"a/b/memory.max": "max\n"}, MACHINE),
        ("4:memory:/a/b\n0::/\n", {"memory/a/memory.limit_in_bytes": "4096\n"}, 4096),
        ("4:memory:/not/seen/from/inside\n", {"memory/memory.limit_in_bytes": "4096\n"}, 4096),
        ("4:memory:/a\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
    ],
)
def test_the_least_limit_counts(groups: str, files: dict[str, str], expected: int, tmp_path: Path) -> None:
    put(tmp_path, {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": files[name] for name in files}})
    assert host.memory(tmp_path) == expected


@pytest.mark.holds("Taking over")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 2 * MIB),
        ({f"{GROUP}/memory.max": "max\n", f"{GROUP}/memory.current": f"{MIB}\n"}, 2 * MIB),
        ({f"{GROUP}/memory.max": f"{3 * MIB}\n", f"{GROUP}/memory.current": f"{2 * MIB}\n"}, MIB),
        (
            {
                f"{GROUP}/memory.max": f"{3 * MIB}\n",
                f"{GROUP}/memory.current": f"{3 * MIB}\n",
                f"{GROUP}/memory.stat": f"anon 7\ninactive_file {MIB // 2}\n",
            },
            MIB // 2,
        ),
        ({"sys/fs/cgroup/a/memory.max": "10\n", "sys/fs/cgroup/a/memory.current": "11\n"}, 0),
        (
            {
                "proc/self/cgroup": "9:memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{2 * MIB}\n",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{2 * MIB}\n",
                "sys/fs/cgroup/memory/a/memory.stat": f"inactive_file 9\ntotal_inactive_file {MIB}\n",
            },
            MIB,
        ),
    ],
    ids=["no limit", "max", "a limit", "unused files", "a limit further out", "version 1"],
)
def test_the_least_of_all_is_free(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    meminfo = "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n"
    put(tmp_path, {"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", **files})
    assert host.free_memory(tmp_path) == expected


def test_this_machine_has_some() -> None:
    assert host.free_memory() > MIB


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
