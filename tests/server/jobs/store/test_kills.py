"""A process that writes a store is killed at random: what it acknowledged is there once, as it was."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from server.features.jobs.store.sqlite import open_sqlite
from tests.server.jobs.store.stores import request
from tests.structure.sources import ROOT
from tests.tiers import full

pytestmark = pytest.mark.faults
REPEATED = 20  # requests that the next process adds once more, with the same keys


def run_and_kill(folder: Path, first: int, num_lines: int) -> list[tuple[str, int, str]]:
    """What a process acknowledged before it was killed behind its n-th line."""
    command = [sys.executable, "-P", "-m", "tests.server.jobs.store.killed_child", str(folder), str(first)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(num_lines)]
        child.kill()
        lines += child.stdout.readlines()
    said = [line.decode().split() for line in lines if line.endswith(b"\n")]
    assert len(said) >= num_lines, "the process ended by itself"
    return [(what, int(number), request_id) for what, number, request_id in said]


@pytest.mark.parametrize("num_kills", [3, *full(25)])
async def test_nothing_acknowledged_is_lost_or_doubled(num_kills: int, tmp_path: Path) -> None:
    folder, draw = tmp_path / "jobs", random.Random(num_kills)
    ids: dict[int, str] = {}
    finished: set[int] = set()
    for _ in range(num_kills):
        first = max(0, max(ids, default=0) - REPEATED)
        for what, number, request_id in run_and_kill(folder, first, draw.randrange(1, 400)):
            assert ids.setdefault(number, request_id) == request_id
            assert what == "added" or number not in finished, "it was run again after its end"
            if what == "finished":
                finished.add(number)
    await check(folder, ids, finished)


async def check(folder: Path, ids: dict[int, str], finished: set[int]) -> None:
    """Each is there under its id and key; what did not end can be claimed once."""
    store = await open_sqlite(folder)
    claimed = [one.body for one in await store.requests.claim(1_000_000)]
    assert len(claimed) == len(set(claimed))
    for number, request_id in ids.items():
        new = request(number, idempotency_key=str(number))
        assert await store.requests.add(new) == request_id
        result = await store.requests.result("anna", request_id)
        assert (result is None) == (new.body in claimed)
        assert result is not None or number not in finished
        assert result is None or result.body == new.body
    await store.close()
