"""Marks and adapters go the whole way: from a frontend's client through batch managers to the fake engine, whose rows
are made of them, and back; also where requests are split, joined, tried again and refused for good."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from batch_manager.client import BatchManagers
from batch_manager.messages import RequestRefusal, RequestRefused, RequestResults, Submission
from engine import fake
from engine.types import Batch, EngineErrorKind, OutputKind, Results, Rows, compute
from tests.batch_manager.peers import INFO, Engine, ManagerRole, running, until
from tests.engine.engines import fake_options
from wire.connection import Link
from wire.page import Page
from wire.parts import PROMPT_TOKEN, Part
from wire.vocabulary import RequestClass

IMAGE_TOKEN = 8  # the bit that is kept for tokens of images
FAKE = fake.load(name="tiny", reason="", options=fake_options(fake_dim=INFO.dimensions))
TABLE = fake.table(INFO.dimensions)
LENGTH = 30


class One(NamedTuple):
    """A sequence with its parts."""

    first: int  # its ids count up from here
    mark: int = 0  # on every second token
    adapter: int = 0

    @property
    def ids(self) -> bytes:
        return np.arange(self.first, self.first + LENGTH, dtype=np.int32).tobytes()

    @property
    def marks(self) -> bytes:
        return bytes([0, self.mark] * (LENGTH // 2))

    @property
    def row(self) -> NDArray[np.float32]:
        others = self.marks + np.int32(self.adapter).tobytes() if self.mark or self.adapter else b""
        return fake.row(TABLE, self.ids, others)


# those with the same ids differ in a part alone
ALL = [
    One(first, mark, adapter)
    for first in (1, 2, 500)
    for mark in (0, PROMPT_TOKEN, IMAGE_TOKEN)
    for adapter in (0, 1, 2)
]


def asked(sequences: Sequence[One]) -> Submission:
    parts = {}
    if any(one.mark for one in sequences):
        parts[Part.MARKS] = b"".join(one.marks for one in sequences)
    if any(one.adapter for one in sequences):
        parts[Part.ADAPTERS] = np.array([one.adapter for one in sequences], np.int32).tobytes()
    ids = b"".join(one.ids for one in sequences)
    return Submission(0, RequestClass.BULK, OutputKind.POOLED, float("inf"), [LENGTH] * len(sequences), ids, parts)


def rows_of(batch: Batch) -> Results:
    results = compute(FAKE, batch)
    assert isinstance(results, dict)
    return results


def assert_own_rows(answer: RequestResults, sequences: Sequence[One]) -> None:
    rows = answer.results[OutputKind.POOLED].values
    np.testing.assert_array_equal(rows, np.stack([one.row for one in sequences]))


@contextlib.asynccontextmanager
async def served(folder: Path, num_managers: int) -> AsyncIterator[tuple[BatchManagers, list[ManagerRole]]]:
    page = Page.create(num_frontends=1, num_managers=num_managers, num_models=1)
    async with contextlib.AsyncExitStack() as stack:
        managers = []
        for index in range(num_managers):
            (own := folder / str(index)).mkdir()
            managers.append(await stack.enter_async_context(running(own, page=page, index=index)))
            managers[-1].engine.compute = rows_of
        client = BatchManagers([(partial(Link, str(one.path)), (0,)) for one in managers], page)
        stack.callback(client.close)
        client.open()
        await until(lambda: bool(page.engines_ready.all()) and all(one.is_up for one in client._managers))
        yield client, managers


def fail_then_serve(engine: Engine) -> None:
    """Fails its first batch, dies of its third, and answers all others."""

    def act(frame_id: int, batch: Batch) -> None:
        seen.append(frame_id)
        if len(seen) == 1:
            engine.fail(frame_id, EngineErrorKind.FAILED)
        elif len(seen) == 3:
            engine.cut()
        else:
            engine.answer(frame_id, rows_of(batch))

    seen: list[int] = []
    engine.script(act)


@pytest.mark.faults
@pytest.mark.holds("Every text gets its own row")
async def test_each_row_is_that_of_its_own_parts_through_splits_and_retries(tmp_path: Path) -> None:
    chance = np.random.default_rng(7)
    large = [ALL[at] for at in chance.integers(0, len(ALL), 400)]
    async with served(tmp_path, 2) as (client, managers):
        for manager in managers:
            fail_then_serve(manager.engine)
        requests = [large, *([one] for one in ALL), ALL]
        answers = await asyncio.gather(*(client.submit(asked(one)) for one in requests))
        for answer, sequences in zip(answers, requests, strict=True):
            assert_own_rows(answer, sequences)
        for manager in managers:
            assert manager.engine.num_batches > 3
            counts = {tuple(names): value for *names, value in manager.child.metrics.drain()["counts"]}
            assert counts["embedline_batch_failures_total", "tiny", "failed"] == 1
            assert counts["embedline_batch_failures_total", "tiny", "lost"] >= 1


@pytest.mark.holds("Every text gets its own row")
async def test_only_what_is_the_same_in_every_part_is_joined(tmp_path: Path) -> None:
    async with served(tmp_path, 1) as (client, (manager,)):
        answers = [asyncio.ensure_future(client.submit(asked([one]))) for one in (*ALL, ALL[-1])]
        await until(lambda: manager.page.queued_tokens.sum() == LENGTH * len(ALL))
        manager.engine.script(lambda frame_id, batch: manager.engine.answer(frame_id, rows_of(batch)))
        for answer, one in zip(await asyncio.gather(*answers), (*ALL, ALL[-1]), strict=True):
            assert_own_rows(answer, [one])
        joined = [count for count in manager.child.metrics.drain()["counts"] if "joined" in count[0]]
        assert joined == [["embedline_joined_requests_total", "tiny", 1]]


@pytest.mark.faults
@pytest.mark.holds("A bad input fails alone")
@pytest.mark.parametrize("poison", [One(500), One(500, IMAGE_TOKEN), One(500, 0, 2), One(500, IMAGE_TOKEN, 1)])
async def test_a_sequence_that_takes_engines_down_is_refused_without_those_that_differ_in_a_part(
    tmp_path: Path, poison: One
) -> None:
    others = [one for one in ALL if one != poison]
    async with served(tmp_path, 1) as (client, (manager,)):
        engine = manager.engine

        def act(frame_id: int, batch: Batch) -> None:
            rows = rows_of(batch)[OutputKind.POOLED].values
            if (rows == poison.row).all(axis=1).any():
                engine.cut()
            else:
                engine.answer(frame_id, {OutputKind.POOLED: Rows(rows)})

        engine.script(act)
        beside = [asyncio.ensure_future(client.submit(asked([one]))) for one in others]
        with pytest.raises(RequestRefused) as refused:
            await client.submit(asked([*others, poison]))
        assert (refused.value.reason, refused.value.index) == (RequestRefusal.POISON, len(others))
        for answer, one in zip(await asyncio.gather(*beside), others, strict=True):
            assert_own_rows(answer, [one])
        num_batches = engine.num_batches
        with pytest.raises(RequestRefused):
            await client.submit(asked([poison]))
        assert engine.num_batches == num_batches
        assert_own_rows(await client.submit(asked(others)), others)
