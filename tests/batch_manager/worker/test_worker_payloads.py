"""The batch manager's process when what it has to send is more than a frame can carry."""

import asyncio
from pathlib import Path

import pytest

from batch_manager.messages import RequestRefusal
from engine.types import OutputKind
from tests.batch_manager.peers import assert_same, expected, refusal, running, submission
from wire import frames

pytestmark = pytest.mark.both_loops


async def test_an_answer_that_no_frame_can_carry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as manager:
        manager.engine.is_automatic = True
        frontend = await manager.frontend()
        await frontend.ask(submission(1))
        monkeypatch.setattr(frames, "MAX_PAYLOAD", 5_000)  # 4 bytes a token to the manager, 8 back
        large = submission(*[50] * 20, outputs=OutputKind.TOKENS)
        small = submission(7, outputs=OutputKind.TOKENS)
        answers = await asyncio.gather(frontend.ask(large), frontend.ask(small))
        assert refusal(answers[0]) == (RequestRefusal.ANSWER_TOO_LARGE, -1)
        assert_same(answers[1], expected(small))
        assert not frontend.lost.is_set()


async def test_a_batch_that_no_frame_can_carry_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as manager:
        manager.engine.is_automatic = True
        frontend = await manager.frontend()
        await frontend.ask(submission(1))
        monkeypatch.setattr(frames, "MAX_PAYLOAD", 300)
        asked = [submission(40, first=1), submission(50, first=100)]
        answers = await asyncio.gather(*map(frontend.ask, asked))
        for answer, one in zip(answers, asked, strict=True):
            assert_same(answer, expected(one))
        counts = manager.child.metrics.drain()["counts"]
        assert ["embedline_batch_failures_total", "tiny", "out_of_memory", 1] in counts
