"""What only the store in a folder has: a disk that fills up, rights, a lock, a version."""

import asyncio
import os
import resource
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from server.features.jobs.disk import FolderTaken
from server.features.jobs.store.sqlite import FILE, SqliteStore, open_sqlite
from server.features.jobs.store.sqlite_writer import Transaction
from server.features.jobs.store.store import StoreFull, StoreUnusable
from server.features.jobs.types import Finished, Result, Status
from tests.server.jobs.small_disk import small_disk
from tests.server.jobs.store.stores import SUCCESS, request

BIG = b"x" * 16_384


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await open_sqlite(tmp_path)
    yield opened
    await opened.close()


async def limit_pages(store: SqliteStore, more: int) -> None:
    """The file may grow by so many pages."""

    def limit(transaction: Transaction) -> None:
        (pages,) = transaction.connection.execute("PRAGMA page_count").fetchone()
        transaction.connection.execute(f"PRAGMA max_page_count = {pages + more}").fetchone()

    await store._writer.do(limit)


async def test_a_full_disk_refuses_what_is_new_and_lets_the_rest_end(store: SqliteStore) -> None:
    await limit_pages(store, 60)
    answers = await asyncio.gather(*(store.requests.add(request(body=BIG)) for _ in range(40)), return_exceptions=True)
    ids = {answer for answer in answers if isinstance(answer, str)}
    assert 5 < len(ids) < 40
    assert all(isinstance(answer, str | StoreFull) for answer in answers)
    claimed = await store.requests.claim(3)
    for one in claimed:
        assert await store.requests.finish(one.request_id, Finished(Status.SUCCEEDED, Result(200, (), b"small")))
    ids.add(await store.requests.add(request(body=BIG)))
    await limit_pages(store, 10_000)
    left = await store.requests.claim(100)
    assert {one.request_id for one in claimed + left} == ids


async def test_what_was_accepted_on_a_small_disk_ends_on_it(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 12 << 20):
        store = await open_sqlite(disk / "store")
        adding = asyncio.gather(*(store.requests.add(request(body=BIG)) for _ in range(800)))
        with pytest.raises(StoreFull, match="disk has no room"):
            await adding
        while claimed := await store.requests.claim(10):
            for one in claimed:
                assert await store.requests.finish(one.request_id, SUCCESS)
        await store.requests.add(request(body=BIG))
        await store.close()


async def test_an_end_that_finds_no_room_can_be_written_later(store: SqliteStore) -> None:
    request_id = await store.requests.add(request())
    await store.requests.claim(1)
    await limit_pages(store, 10)
    large = Finished(Status.SUCCEEDED, Result(200, (), BIG * 10))
    with pytest.raises(StoreFull):
        await store.requests.finish(request_id, large)
    held = (await store.requests.counts(None)).held_bytes
    await limit_pages(store, 10_000)
    assert await store.requests.finish(request_id, large)
    assert await store.requests.result("anna", request_id) == large.result
    assert held < len(BIG)


async def test_a_file_that_may_not_grow_refuses_until_it_may(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path)
    ids = [await store.requests.add(request())]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        calls = (store.requests.add(request(body=BIG)) for _ in range(200))
        answers = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {type(answer) for answer in answers} == {str, StoreFull}
    ids += [answer for answer in answers if isinstance(answer, str)]
    ids.append(await store.requests.add(request()))
    await store.close()
    store = await open_sqlite(tmp_path)
    assert [one.request_id for one in await store.requests.claim(1000)] == ids
    await store.close()


async def test_one_that_fails_takes_no_other_with_it(store: SqliteStore) -> None:
    def fail(transaction: Transaction) -> None:
        raise OSError(28, "No space left on device")

    calls = (store.requests.add(request()), store._writer.do(fail), store.requests.add(request(1)))
    first, failed, second = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(failed, StoreFull)
    assert [one.request_id for one in await store.requests.claim(10)] == [first, second]


async def test_a_caller_who_left_is_no_harm(store: SqliteStore) -> None:
    leaving = asyncio.create_task(store.requests.add(request()))
    await asyncio.sleep(0)
    leaving.cancel()
    await store.requests.claimable(60)
    assert len(await store.requests.claim(10)) == 1


async def test_the_folder_is_private(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "a" / "jobs")
    request_id = await store.requests.add(request())
    await store.requests.finish(request_id, SUCCESS)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "jobs").iterdir()}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "a" / "jobs").stat().st_mode) == 0o700
    await store.close()


async def test_a_folder_serves_one_at_a_time(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path)
    with pytest.raises(FolderTaken):
        await open_sqlite(tmp_path)
    await store.close()
    await (await open_sqlite(tmp_path)).close()


async def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    await (await open_sqlite(tmp_path)).close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(StoreUnusable, match="version 7"):
        await open_sqlite(tmp_path)


async def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    os.chmod(tmp_path, 0o700)
    with pytest.raises(StoreUnusable, match="not a database"):
        await open_sqlite(tmp_path)
