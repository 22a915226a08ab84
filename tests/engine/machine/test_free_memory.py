"""What is left of the machine's memory, or of a container's limit."""

from pathlib import Path

import pytest

from engine.machine.host import free_memory

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in {"proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n", **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


GROUP = "sys/fs/cgroup/a/b"


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
def test_the_least_of_all_counts(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **files})
    assert free_memory(tmp_path) == expected


def test_this_machine_has_some() -> None:
    assert free_memory() > MIB
