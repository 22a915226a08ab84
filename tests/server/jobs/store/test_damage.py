"""Files of a store that were damaged while no server ran: what was lost is said, or the start refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.features.jobs.store.sqlite import FILE, open_sqlite
from server.features.jobs.store.store import StoreUnusable
from tests.server.jobs.store.stores import request

_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from server.features.jobs.store.sqlite import open_sqlite
from tests.server.jobs.store.stores import request

async def main():
    store = await open_sqlite(Path(sys.argv[1]))
    for number in range(20):
        await store.requests.add(request(number, body=bytes(9000)))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store whose process was killed, with twenty requests in its log."""
    folder = tmp_path_factory.mktemp("killed") / "store"
    subprocess.run([sys.executable, "-c", _KILLED, str(folder)], check=False)
    assert Path(f"{folder / FILE}-wal").stat().st_size > 100_000
    return folder


def flip(file: Path, at: float) -> None:
    """One byte, so far behind its beginning."""
    content = bytearray(file.read_bytes())
    content[int(len(content) * at)] ^= 1
    file.write_bytes(content)


async def num_kept(folder: Path) -> int:
    store = await open_sqlite(folder)
    counts = await store.requests.counts(None)
    await store.close()
    return sum(counts.queued)


@pytest.fixture
def folder(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "store"))


async def test_a_log_that_is_whole_is_taken(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert await num_kept(folder) == 20
    assert not caplog.records


@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.999])
async def test_a_damaged_log_is_refused_with_what_to_do(folder: Path, at: float) -> None:
    log = Path(f"{folder / FILE}-wal")
    flip(log, at)
    with pytest.raises(StoreUnusable, match="what was accepted last is lost") as refused:
        await open_sqlite(folder)
    end = int(str(refused.value).rpartition("truncate -s ")[2].split()[0])
    os.truncate(log, end)  # as the message says
    os.unlink(f"{folder / FILE}-shm")
    if end:  # else its very head is damaged, and with it the tables
        assert 0 < await num_kept(folder) < 20


async def test_a_log_without_its_index_is_told_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip(Path(f"{folder / FILE}-wal"), 0.5)
    os.unlink(f"{folder / FILE}-shm")
    assert await num_kept(folder) < 20
    assert "is not whole" in caplog.text


@pytest.mark.parametrize("end", [0, 100_000])
async def test_a_log_that_was_cut_off_is_refused(folder: Path, end: int) -> None:
    os.truncate(f"{folder / FILE}-wal", end)
    with pytest.raises(StoreUnusable, match="what was accepted last is lost"):
        await open_sqlite(folder)


async def test_an_empty_store_beside_its_log_is_refused(folder: Path) -> None:
    (folder / FILE).write_bytes(b"")
    with pytest.raises(StoreUnusable, match="is empty, and its log"):
        await open_sqlite(folder)


@pytest.mark.parametrize("at", [0.0, 0.001, 0.5])
async def test_a_damaged_store_is_refused(tmp_path: Path, at: float) -> None:
    store = await open_sqlite(tmp_path / "store")
    for number in range(50):
        await store.requests.add(request(number, body=bytes(9000)))
    await store.close()
    file = tmp_path / "store" / FILE
    content = bytearray(file.read_bytes())
    begin = int(len(content) * at) // 4096 * 4096
    content[begin : begin + 4096] = bytes(4096)
    file.write_bytes(content)
    with pytest.raises(StoreUnusable):
        await open_sqlite(tmp_path / "store")
    with pytest.raises(StoreUnusable, match=r"^(?!.*in use)"):
        await open_sqlite(tmp_path / "store")
