"""A frontend that tokenizes and forms batches too answers, shows and stops as processes of their own do."""

import asyncio
import time
from pathlib import Path

import pytest

from server.frontend import inside
from tests.batch_manager.peers import until
from tests.server.frontend.compact import TOKENIZER, CompactFrontend, compact_frontend
from tokenizer_pool.tokenizer import Tokenizer

pytestmark = pytest.mark.both_loops

TEXTS = [f"a ferry, number {number}" for number in range(24)]


async def assert_own_rows(frontend: CompactFrontend, *texts: str) -> None:
    """The scripted engine's rows name the ids that they are of."""
    status, answer = await frontend.embed(*texts)
    assert status == 200, answer
    for text, row in zip(texts, answer["data"], strict=True):
        ids = Tokenizer(TOKENIZER).encode([text]).token_ids
        assert row["embedding"] == [ids[0], ids[-1], len(ids), 0]


@pytest.mark.holds("Every text gets its own row")
async def test_requests_are_answered_alone_and_beside_others(tmp_path: Path) -> None:
    async with compact_frontend(tmp_path) as frontend:
        frontend.engine.is_automatic = True
        await assert_own_rows(frontend, TEXTS[0])
        pairs = zip(TEXTS[::2], TEXTS[1::2], strict=True)
        await asyncio.gather(*(assert_own_rows(frontend, *pair) for pair in pairs))


async def test_all_parts_count_and_say_what_they_hold(tmp_path: Path) -> None:
    async with compact_frontend(tmp_path) as frontend:
        asked = asyncio.create_task(frontend.embed(TEXTS[0], TEXTS[1]))
        await until(lambda: not frontend.engine.batches.empty())
        levels = {tuple(key): level for *key, level in frontend.child.metrics.levels()}
        assert levels["embedline_queue_sequences", "batch manager 0"] == 2
        assert levels["embedline_open_requests", "frontend 0"] == 1
        tokenizer = {"pieces": 0, "frontends": 1}
        assert frontend.child.holds() == {"unsent_requests": 0, "sent_pieces": 0, "tokenizer": tokenizer}
        await frontend.engine.answer_next()
        assert (await asked)[0] == 200
        counted = {name: value for name, *_, value in frontend.child.metrics.drain()["counts"]}
        assert counted["embedline_tokenized_texts_total"] == 2
        assert counted["embedline_batch_release_total"] == 1


async def test_each_heartbeat_shows_that_the_batch_manager_runs(tmp_path: Path) -> None:
    async with compact_frontend(tmp_path) as frontend:
        before = time.monotonic()
        frontend.child.on_beat()
        assert frontend.page.published_at[0] >= before


@pytest.mark.holds("Shutdown")
async def test_open_requests_are_answered_before_the_parts_stop(tmp_path: Path) -> None:
    async with compact_frontend(tmp_path) as frontend:
        asked = asyncio.create_task(frontend.embed(TEXTS[0]))
        await until(lambda: not frontend.engine.batches.empty())
        frontend.child.stopping.set()
        await until(lambda: not frontend.page.num_connections[0])
        await frontend.engine.answer_next()
        assert (await asked)[0] == 200


@pytest.mark.holds("Shutdown")
async def test_a_request_that_no_engine_answers_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "_DRAIN_SECONDS", 0.01)
    async with compact_frontend(tmp_path, shutdown_timeout=0.0) as frontend:
        asked = asyncio.create_task(frontend.embed(TEXTS[0]))
        await until(lambda: not frontend.engine.batches.empty())
        frontend.child.stopping.set()
        assert (await asked)[0] == 503
