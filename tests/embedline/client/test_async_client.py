"""The client for asyncio: the same results and errors, and cancellation by the task."""

import asyncio
import inspect
import threading
from collections.abc import Generator
from typing import assert_type
from unittest import mock

import numpy as np
import pytest

from embedline import AsyncClient, CancellationToken, Cancelled, Client, RequestFailed, RequestProcessingPreference
from embedline.client import async_client
from embedline.client.async_client import each_in_a_thread, in_a_thread
from embedline.client.client import EmbeddedSlice, EmbedResponse
from tests.embedline.client.stub import as_json, raw, rows_of, stub, texts
from tests.embedline.client.test_tasks import predict, tei
from tests.server_e2e.running import PATIENCE

BATCHES = RequestProcessingPreference(batch_size=7)


async def test_many_calls_side_by_side() -> None:
    with stub(lambda seen: [raw(seen.texts)]) as server:
        async with AsyncClient(server.url, preference=BATCHES) as client:
            answers = await asyncio.gather(*(client.embed(texts(count)) for count in range(1, 30)))
    for count, answer in enumerate(answers, 1):
        assert np.array_equal(answer.numpy(), rows_of(texts(count)))


async def test_the_other_calls() -> None:
    with stub(tei) as server:
        async with AsyncClient(server.url) as client:
            assert (await client.rerank("a query", texts(3))).order().tolist() == [2, 1, 0]
    with stub(predict) as server:
        async with AsyncClient(server.url) as client:
            assert (await client.classify(texts(1))).best() == ["bad"]
            posted = await client.batch_post("/predict", [{"inputs": [["text 1"]]}])
            assert posted.data[0][0][0]["label"] == "good"


@pytest.mark.parametrize(
    "name", ["embed", "embed_query", "embed_documents", "iter_embed", "rerank", "classify", "batch_post"]
)
async def test_a_call_has_the_arguments_and_the_documentation_of_the_client(name: str) -> None:
    call, same = getattr(AsyncClient, name), getattr(Client, name)
    assert inspect.signature(call) == inspect.signature(same)
    assert call.__doc__ == same.__doc__
    assert call.__name__ == name
    assert inspect.isasyncgenfunction(call) if name == "iter_embed" else inspect.iscoroutinefunction(call)


async def test_type_checkers_know_arguments_and_results() -> None:
    with stub(lambda seen: [raw(seen.texts)]) as server:
        async with AsyncClient(server.url) as client:
            assert_type(await client.embed("text", user="a"), EmbedResponse)
            async for part in client.iter_embed("text"):
                assert_type(part, EmbeddedSlice)
            assert_type(await client.embed_query("text", dimensions=4), EmbedResponse)
            with pytest.raises(TypeError, match="dimension"):
                await client.embed("text", dimension=2)  # type: ignore[call-arg]


async def test_rows_as_batches_finish() -> None:
    with stub(lambda seen: [raw(seen.texts)]) as server:
        async with AsyncClient(server.url, preference=BATCHES) as client:
            rows = np.empty((50, 4), np.float32)
            async for part, found in client.iter_embed(text for text in texts(50)):
                rows[part] = found
    assert np.array_equal(rows, rows_of(texts(50)))


async def test_a_cancelled_task_drops_its_requests() -> None:
    never = threading.Event()
    with stub(lambda _: [never]) as server:
        async with AsyncClient(server.url) as client:
            task = asyncio.create_task(client.embed("text"))
            await asyncio.to_thread(server.wait_until, lambda: len(server.seen) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            never.set()
            await asyncio.to_thread(server.wait_until, lambda: not server.open)


async def test_a_cancelled_iteration_drops_its_requests() -> None:
    never = threading.Event()
    with stub(lambda seen: [raw(seen.texts)] if seen.number == 0 else [never]) as server:
        async with AsyncClient(server.url, preference=BATCHES) as client:

            async def iterate() -> None:
                async for _ in client.iter_embed(texts(1000)):
                    pass

            task = asyncio.create_task(iterate())
            await asyncio.to_thread(server.wait_until, lambda: len(server.seen) >= 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            never.set()
            await asyncio.to_thread(server.wait_until, lambda: len(server.open) <= 1)


async def test_an_iteration_left_early_is_ended_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_in = []

    def slices(*_: object, **__: object) -> Generator[int, None, None]:
        try:
            yield from range(9)
        finally:
            ended_in.append(threading.current_thread())

    monkeypatch.setattr(AsyncClient, "iter_embed", each_in_a_thread(slices))
    async with AsyncClient("http://localhost:1") as client:
        rows = client.iter_embed(texts(9))
        await anext(rows)
        await rows.aclose()
    assert ended_in
    assert threading.current_thread() not in ended_in


async def test_the_callers_own_token_works_too() -> None:
    never, token = threading.Event(), CancellationToken()
    preference = RequestProcessingPreference(cancel_token=token)
    with stub(lambda _: [never]) as server:
        async with AsyncClient(server.url) as client:
            task = asyncio.create_task(client.embed("text", preference=preference))
            await asyncio.to_thread(server.wait_until, lambda: len(server.seen) == 1)
            token.cancel()
            with pytest.raises(Cancelled):
                await task
            never.set()


async def test_a_call_that_waits_for_a_thread_is_cancelled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_client, "_MAX_CALLS", 1)
    never, token = threading.Event(), CancellationToken()
    with stub(lambda _: [never]) as server:
        async with AsyncClient(server.url) as client:
            first = asyncio.create_task(client.embed("text 1"))
            await asyncio.to_thread(server.wait_until, lambda: len(server.seen) == 1)
            preference = RequestProcessingPreference(cancel_token=token)
            waiting = asyncio.create_task(client.embed("text 2", preference=preference))
            dropped = asyncio.create_task(client.embed("text 3"))
            await asyncio.sleep(0)  # they begin
            token.cancel()
            dropped.cancel()
            with pytest.raises(Cancelled):
                await waiting
            with pytest.raises(asyncio.CancelledError):
                await dropped
            first.cancel()
            await asyncio.wait([first])
            never.set()
    assert len(server.seen) == 1


async def test_the_wait_for_a_thread_is_a_part_of_the_calls_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    def embed(*_: object, preference: RequestProcessingPreference, **__: object) -> None:
        given.append(preference.total_timeout_s)

    monkeypatch.setattr(AsyncClient, "embed", in_a_thread(embed))
    monkeypatch.setattr(async_client, "time", mock.Mock(monotonic=mock.Mock(side_effect=[0.0, 30.0, 0.0, 200.0])))
    async with AsyncClient("http://localhost:1") as client:
        for _ in range(2):
            await client.embed("text", preference=RequestProcessingPreference(total_timeout_s=100))
    assert given == [70.0, 0.001]


async def test_a_task_that_is_cancelled_twice_still_waits_for_the_end_of_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, end = threading.Event(), threading.Event()

    def slices(*_: object, **__: object) -> Generator[int, None, None]:
        entered.set()
        end.wait(PATIENCE)
        yield 1

    monkeypatch.setattr(AsyncClient, "iter_embed", each_in_a_thread(slices))
    async with AsyncClient("http://localhost:1") as client:
        first = asyncio.ensure_future(anext(client.iter_embed(texts(9))))
        await asyncio.to_thread(entered.wait, 30)
        for _ in range(2):
            first.cancel()
            await asyncio.sleep(0)
        assert not first.done()
        end.set()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_closing_ends_the_calls_under_way() -> None:
    never = threading.Event()
    with stub(lambda _: [never]) as server:
        client = AsyncClient(server.url)
        task = asyncio.create_task(client.embed("text"))
        await asyncio.to_thread(server.wait_until, lambda: len(server.seen) == 1)
        client.close()
        with pytest.raises(Cancelled, match="the client was closed") as ended:
            await task
        assert not ended.value.partial.done.any()
        never.set()


async def test_errors_are_the_same() -> None:
    with stub(lambda _: [as_json({"error": "no"}, 401)]) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(RequestFailed, match="HTTP 401: no") as failed:
                await client.embed(texts(2))
            assert not failed.value.partial.done.any()
