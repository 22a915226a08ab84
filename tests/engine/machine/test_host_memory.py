"""How much memory this process may use: the least limit of its control groups, of either version. Files stand in."""

from pathlib import Path

import pytest

from engine.machine import host

MACHINE = host.memory(Path("/nowhere"))


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
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": files[name] for name in files}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host.memory(tmp_path) == expected
