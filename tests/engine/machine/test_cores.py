"""How many cores there are to use: by affinity, by a container's quota, and by what is physical. Files stand in."""

import os
from pathlib import Path

import pytest

from engine.machine import cores
from tests.engine.folder_files import put

ALL = set(range(8))


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: ALL)


def test_without_limits_every_processor_is_a_core(tmp_path: Path) -> None:
    assert (cores.find(tmp_path).usable, cores.find(tmp_path).quota) == (8, None)


def test_the_affinity_counts_and_not_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert cores.find(tmp_path).usable == 2


def test_two_processors_of_a_core_are_one(tmp_path: Path) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    found = cores.find(put(tmp_path, {topology.format(n): f"{n % 4},{n % 4 + 4}\n" for n in ALL}))
    assert (found.num_processors, found.num_cores, found.usable) == (8, 4, 4)


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),  # as a container sees its own group
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),  # of the group around it
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/cpu.max": "600000 100000\n",
                "sys/fs/cgroup/cpu.max": "400000 100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "7:memory:/m\n4:cpu,cpuacct:/c\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us": "50000\n",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/not/seen/from/inside\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
    ids=str,
)
def test_a_quota_of_either_version(files: dict[str, str], usable: int, tmp_path: Path) -> None:
    assert cores.find(put(tmp_path, files)).usable == usable


def test_what_is_said_of_them(tmp_path: Path) -> None:
    assert str(cores.find(tmp_path)) == "8 processors on 8 cores, no quota"
    put(tmp_path, {"sys/fs/cgroup/cpu.max": "150000 100000"})
    assert str(cores.find(tmp_path)) == "8 processors on 8 cores, a quota of 1.5"
