"""A frontend's client and the pipelines process's service, on a Unix socket: what a run gives, and how it can end."""

import asyncio
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from embedline import AsyncClient
from embedline.pipelines import pipeline, step
from server.features.pipelines.loading import PipelinesUnusable
from server.features.pipelines.main import Clients, Runs
from server.features.pipelines.messages import Run
from server.features.pipelines.routes import PipelinesClient, run_pipeline
from server.http.body import Message, RequestBodies
from server.requests.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    MalformedBody,
    NotFound,
    NotReady,
    Overloaded,
    RequestError,
)
from tests.server.edge import Edge
from tests.server.pipelines.running_pipelines import ALL, SECRET_TEXT, Rows, connected, gates, run
from tests.server_e2e.running import PATIENCE
from wire.metrics import Recorder


async def test_json_goes_in_and_comes_out(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, process):
        found = await run(client, "search", {"text": "a", "scores": [3, 2.5, 1]})
        assert found == [{"text": "a", "score": 3.0}, {"text": "a", "score": 2.5}]
        assert await run(client, "arrays", {"rows": [[1, 2], [3, 4]]}) == [[2, 4], [6, 8]]
    counted = process.metrics.drain()
    assert "embedline_pipeline_runs_total" in json.dumps(counted)


def packed(dtype: str, shape: list[int], data: bytes) -> dict[bytes, Any]:
    """An array as the package msgpack-numpy writes it."""
    return {b"nd": True, b"type": dtype, b"kind": b"", b"shape": shape, b"data": data}


async def test_msgpack_has_arrays_as_bytes(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=">f8").reshape(2, 3)
    body = msgspec.msgpack.encode({"rows": packed(">f8", [2, 3], rows.tobytes())})
    asked = Run("arrays", "", None, body, is_msgpack=True, answers_msgpack=True)
    async with connected(tmp_path) as (client, _):
        found = msgspec.msgpack.decode(await client.run(asked, math.inf))
    assert found == packed("<f4", [2, 3], (2 * rows).astype("<f4").tobytes())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (packed("<f4", [2], b"abc"), "rows: expected as many bytes of data as type and shape say"),
        (packed("<f4", [-1], b"abcd"), "rows: expected an array"),
        (packed("|O", [1], b"abcdefgh"), "rows: expected an array"),
        ({}, "rows: expected an array"),
    ],
    ids=["bytes", "shape", "type", "empty"],
)
async def test_arrays_that_are_none_are_refused(given: Any, problem: str, tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, _):
        asked = Run("arrays", "", None, msgspec.msgpack.encode({"rows": given}), is_msgpack=True)
        with pytest.raises(InvalidRequest, match=problem):
            await client.run(asked, math.inf)
        with pytest.raises(MalformedBody, match="the body is not valid msgpack"):
            await client.run(Run("arrays", "", None, b"\xc1", is_msgpack=True), math.inf)


async def test_a_number_of_numpy_is_one(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, _):
        assert await run(client, "client_named", {"client": 2.5, "self": "a"}) == 5.0
        with pytest.raises(InvalidRequest, match="client: expected a number"):
            await run(client, "client_named", {"client": [2.5], "self": "a"})


async def test_a_body_is_open_until_the_run_has_ended(tmp_path: Path) -> None:
    bodies = RequestBodies(max_bytes=100_000, max_total_bytes=100_000)

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps({"text": "a" * 90_000}).encode()}

    async with connected(tmp_path) as (client, _):
        edge = Edge()
        edge.change(bodies=bodies)
        request = edge.request(receive, path_values={"name": "waits"})
        asked = asyncio.ensure_future(run_pipeline(client, request))
        await gates[-1].began.wait()
        with pytest.raises(Overloaded), bodies.whole(bytes(70_000)):
            pass
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        request.let_go()
        with bodies.whole(bytes(70_000)):
            pass


async def test_the_listing_has_the_schemas(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, _):
        listed = {one.name: one for one in await client.listing()}
    assert list(listed) == [one.name for one in ALL]
    assert (listed["search"].description, listed["search"].steps, listed["waits"].timeout) == ("Found.", ["hits"], 10)
    assert listed["search"].input["$defs"]["search"]["required"] == ["text", "scores"]
    assert listed["search"].output["items"]["$ref"].endswith("Hit")


@pytest.mark.parametrize(
    ("name", "body", "kind", "message"),
    [
        ("nothing", None, NotFound, "no pipeline has this name; GET /pipelines lists them"),
        ("fails", b"{", MalformedBody, "the body is not valid JSON in UTF-8"),
        ("fails", {}, InvalidRequest, "text is missing"),
        ("fails", {"text": 3}, InvalidRequest, "text: expected `str`, got `int`"),
        ("fails", {"text": "a", "limit": 3}, InvalidRequest, "unknown field"),
        ("arrays", {"rows": [[1], [1, 2]]}, InvalidRequest, "rows: expected numbers in lists of equal lengths"),
        ("arrays", {"rows": [SECRET_TEXT]}, InvalidRequest, "rows: expected numbers in lists of equal lengths"),
        ("fails", None, EngineFailed, "step failing failed: KeyError"),
        ("refuses", None, InvalidRequest, "no index for this tenant"),
        ("too_busy", None, Overloaded, "step busy found this server too busy"),
        ("sends_nothing", None, EngineFailed, "pipeline sends_nothing gave an output that can't be sent"),
        ("panics", None, EngineFailed, "step panicking failed: Panic"),
        ("refuses_unsendably", None, InvalidRequest, "no index ?"),
        ("leaves", None, EngineFailed, "step leaving failed: GeneratorExit"),
        ("holds_itself", None, EngineFailed, "pipeline holds_itself gave an output that can't be sent"),
        ("picks", {"one": {"text": SECRET_TEXT}}, EngineFailed, "pipeline picks: its input failed: KeyError"),
        ("hangs", None, DeadlineExceeded, "pipeline hangs did not end within 0.001 s; under way: waiting"),
    ],
)
async def test_what_goes_wrong_is_stated(
    name: str, body: Any, kind: type[RequestError], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(tmp_path) as (client, _):
        with pytest.raises(kind) as refused, caplog.at_level(logging.INFO):
            await run(client, name, body)
    assert message in refused.value.message
    assert SECRET_TEXT not in refused.value.message + caplog.text


async def test_what_a_step_says_of_a_wrong_input_is_cut(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, _):
        with pytest.raises(InvalidRequest) as refused:
            await run(client, "repeats", {"text": "x" * 100_000})
    assert refused.value.message == "x" * 1000


async def test_a_request_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.features.pipelines.routes._GRACE_SECONDS", PATIENCE)
    async with connected(tmp_path) as (client, _):
        with pytest.raises(DeadlineExceeded, match="pipeline waits did not end before the request's deadline"):
            await run(client, "waits", seconds=0.5)
        with pytest.raises(DeadlineExceeded, match="the deadline had passed"):
            await run(client, "waits", seconds=-1)


async def test_a_client_that_leaves_cancels_its_run(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, process):
        asked = asyncio.create_task(run(client, "waits"))
        await gates[-1].began.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await gates[-1].ended.wait()
        assert await run(client, "arrays", {"rows": []}) == []
    assert process.runs.num_open == 0


async def test_runs_have_a_bound(tmp_path: Path) -> None:
    async with connected(tmp_path, most=1) as (client, _):
        asked = asyncio.create_task(run(client, "waits"))
        await gates[-1].began.wait()
        with pytest.raises(Overloaded) as refused:
            await run(client, "arrays", {"rows": []})
        asked.cancel()
    assert refused.value.retry_after == 1.0


async def test_a_process_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.features.rpc._START_SECONDS", 0.001)
    client = PipelinesClient(str(tmp_path / "nobody.sock"))
    client.open()
    calls: list[Callable[[], Any]] = [client.listing, lambda: run(client, "waits")]
    for call in calls:
        with pytest.raises(NotReady, match="the pipelines process is down"):
            await call()
    client.close()


async def test_a_type_without_a_form_in_json_is_refused(tmp_path: Path) -> None:
    @step
    async def open_client(text: str) -> AsyncClient:
        return AsyncClient("http://localhost")

    @pipeline
    def wrong(text: str) -> AsyncClient:
        return open_client(text)

    @step
    async def first(given: Rows | list[str]) -> str:
        return str(given[0])

    @pipeline
    def either(given: Rows | list[str]) -> str:
        return first(given)

    for one, problem in ((wrong, "AsyncClient has no form in JSON"), (either, "Type unions containing a custom type")):
        with pytest.raises(PipelinesUnusable, match=f"pipeline {one.name}: {problem}"):
            Runs({one.name: one}, Clients("/nowhere", "secret"), most=1, metrics=Recorder())


@pytest.mark.holds("Fair shares")
@pytest.mark.parametrize(("owners", "place"), [("aabcd", 5), ("aaaaab", 3)])
async def test_large_answers_are_made_one_at_a_time_and_keys_take_turns(
    owners: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frontend that reads none has one in its connection; all others, of whichever key, are not made yet."""
    made: list[str] = []

    async def large(run: Run, *_: object) -> list[bytes]:
        made.append(run.owner)
        return [b'"%s"' % (b"x" * (8 << 20))]

    monkeypatch.setattr("server.features.pipelines.main._body", large)
    async with connected(tmp_path, most=64) as (client, process):
        await client.listing()
        client._link._connection._transport.pause_reading()  # type: ignore[union-attr]
        body = b'{"text": "a", "scores": [3.0]}'
        runs = [asyncio.create_task(client.run(Run("search", owner, None, body), math.inf)) for owner in owners]
        while not made or process.runs.num_open < len(owners):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (len(made), process.runs.num_open) == (1, len(owners))
        client._link._connection._transport.resume_reading()  # type: ignore[union-attr]
        assert [len(answer) for answer in await asyncio.gather(*runs)] == [(8 << 20) + 2] * len(owners)
        assert process.runs.num_open == 0
    assert owners[-1] in made[:place]


@pytest.mark.holds("Fair shares")
async def test_a_keys_runs_leave_places_to_other_keys(tmp_path: Path) -> None:
    async with connected(tmp_path, most=16) as (client, process):
        runs: list[asyncio.Task[bytes]] = []
        refused = Counter[str]()
        for owner in "aaaaaaaaaaaaaaaabbbbbbbbccccdddde":
            asked = Run("waits", owner, None, b'{"text": "x"}')
            task = asyncio.create_task(client.run(asked, time.monotonic() + 60))
            open_before = process.runs.num_open
            while not task.done() and process.runs.num_open == open_before:  # noqa: ASYNC110
                await asyncio.sleep(0)
            if task.done():
                with pytest.raises(Overloaded):
                    task.result()
                refused[owner] += 1
            runs.append(task)
        assert process.runs._of_keys == {"a": 12, "b": 3, "c": 1}
        assert refused == {"a": 4, "b": 5, "c": 3, "d": 4, "e": 1}
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
