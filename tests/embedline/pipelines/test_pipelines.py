"""Pipelines run in this process: what they give, and how a step that fails, hangs or is cancelled ends."""

import asyncio

import numpy as np
import pytest
from numpy.typing import NDArray

from embedline import AsyncClient
from embedline.pipelines import InvalidInput, PipelineError, PipelineTimeout, StepFailed, StepTimeout, pipeline, step

Rows = NDArray[np.float32]


class Models:
    """In place of a client: a text's row is its length and its first letter's number."""

    async def embed(self, texts: list[str]) -> Rows:
        return np.array([[len(text), ord(text[0])] for text in texts], np.float32)


CLIENT: AsyncClient = Models()  # type: ignore[assignment]


@step
async def embed(client: AsyncClient, texts: list[str]) -> Rows:
    return np.asarray(await client.embed(texts))


@step
async def one(text: str) -> list[str]:
    return [text]


@step
async def nearest(rows: Rows, queries: Rows, limit: int) -> list[int]:
    return [int(index) for index in np.abs(rows - queries).sum(axis=1).argsort()[:limit]]


@pipeline
def search(query: str, texts: list[str], limit: int = 2) -> list[int]:
    """The texts nearest to a query."""
    return nearest(rows=embed(texts), queries=embed(one(query)), limit=limit)


async def test_a_pipeline_gives_what_its_steps_make() -> None:
    assert await search.run(CLIENT, "bat", ["ant", "bee and cat", "bar"]) == [2, 0]


async def test_a_step_is_tried_alone() -> None:
    assert await one.function("a") == ["a"]


async def test_a_step_that_is_used_twice_has_two_names() -> None:
    assert [node.name for node in search.graph.nodes] == ["embed", "one", "embed 2", "nearest"]
    assert search.defaults == {"limit": 2}
    assert search.description == "The texts nearest to a query."


async def test_steps_that_need_nothing_of_each_other_run_side_by_side() -> None:
    both = asyncio.Barrier(2)

    @step
    async def met(number: int) -> int:
        await both.wait()
        return number

    @step
    async def added(a: int, b: int) -> int:
        return a + b

    @pipeline
    def sums(number: int) -> int:
        return added(met(number), met(3))

    assert await sums.run(None, 4) == 7


async def test_a_pipeline_lends_its_steps_to_another() -> None:
    @step
    async def first(found: list[int]) -> int:
        return found[0]

    @pipeline
    def best(query: str) -> int:
        return first(search(query, two(query)))

    @step
    async def two(text: str) -> list[str]:
        return ["x", text]

    assert await best.run(CLIENT, "bat") == 1
    assert [node.name for node in best.graph.nodes] == ["two", "embed", "one", "embed 2", "nearest", "first"]


async def test_a_step_that_fails_is_named_and_the_others_are_cancelled() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    @step
    async def waiting(text: str) -> int:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1

    @step
    async def failing(text: str) -> int:
        await began.wait()
        raise KeyError("no such thing")

    @step
    async def added(a: int, b: int) -> int:
        return a + b

    @pipeline
    def fails(text: str) -> int:
        return added(waiting(text), failing(text))

    with pytest.raises(StepFailed, match="step failing failed: KeyError: 'no such thing'") as failed:
        await fails.run(None, "a")
    assert failed.value.step == "failing"
    assert isinstance(failed.value.__cause__, KeyError)
    assert cancelled.is_set()


@step
async def endless(text: str) -> str:
    await asyncio.Event().wait()
    return text


@step(timeout=0.001)
async def endless_within_bounds(text: str) -> str:
    await asyncio.Event().wait()
    return text


@pipeline(timeout=0.001)
def too_long(text: str) -> list[str]:
    return one(endless(text))


async def test_a_pipeline_ends_in_its_time_and_says_what_was_under_way() -> None:
    with pytest.raises(PipelineTimeout, match=r"too_long did not end within 0.001 s; under way: endless$") as late:
        await too_long.run(None, "a")
    assert late.value.steps == ("endless",)


async def test_a_step_ends_in_its_time() -> None:
    @pipeline
    def late(text: str) -> str:
        return endless_within_bounds(text)

    with pytest.raises(StepTimeout, match=r"step endless_within_bounds did not end within 0.001 s"):
        await late.run(None, "a")


async def test_a_run_that_is_cancelled_cancels_its_steps() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @step
    async def waiting(text: str) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return text

    @pipeline
    def waits(text: str) -> str:
        return waiting(text)

    run = asyncio.create_task(waits.run(None, "a"))
    await began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended.is_set()


async def test_a_step_whose_own_wait_was_cancelled_has_failed() -> None:
    @step
    async def cancels(text: str) -> str:
        raise asyncio.CancelledError

    @pipeline
    def lost(text: str) -> str:
        return cancels(text)

    with pytest.raises(StepFailed, match="step cancels was cancelled by what it waited for"):
        await lost.run(None, "a")


async def test_a_step_may_say_that_its_input_is_wrong() -> None:
    @step
    async def refusing(text: str) -> str:
        raise InvalidInput("no index for this tenant")

    @pipeline
    def refuses(text: str) -> str:
        return refusing(text)

    with pytest.raises(InvalidInput, match="no index for this tenant"):
        await refuses.run(None, "a")


async def test_a_step_that_takes_a_client_needs_one() -> None:
    with pytest.raises(StepFailed, match="step embed takes an AsyncClient, and the run was given none") as failed:
        await search.run(None, "a", ["b"])
    assert isinstance(failed.value.__cause__, PipelineError)
