"""What becomes of a request by what the server answers: attempts that count, those that don't, and its end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from server.features.jobs import http_client
from server.features.jobs import runner as runner_module
from server.features.jobs.http_client import SelfClient
from server.features.jobs.pace import Pace
from server.features.jobs.runner import Runner
from server.features.jobs.store.sqlite import open_sqlite
from server.features.jobs.store.store import RequestStore, StoreFull
from server.features.jobs.types import Finished, NewRequest, RequestView, Result, RetryPolicy, Status
from tests.batch_manager.peers import until
from tests.server_e2e.running import PATIENCE
from wire.metrics import Recorder

OK = (200, b'{"rows":1}')
NEVER = (0, b"")  # no answer comes
LOST = (-1, b"")  # the connection ends
Answers = Sequence[tuple[int, bytes]]


class Server:
    """Answers one request after the other from a list; the last answer stays."""

    def __init__(self, answers: Answers) -> None:
        self._answers = list(answers)
        self.asked = asyncio.Event()
        self.heads: list[str] = []
        self.changes: list[int] = []  # how many requests were claimed when the runner said that numbers changed

    async def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
            self.heads.append(head)
            status, body, more = self.answer(head)
            self.asked.set()
            if status == LOST[0]:
                break
            if status == NEVER[0]:
                await reader.read()
                break
            writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body)

    def answer(self, head: str) -> tuple[int, bytes, str]:
        """Status, body and further headers."""
        status, body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return status, body, "retry-after: 0\r\n" if status in (429, 503) else "x-embedline-shape: 1\r\nx-other: a\r\n"


@asynccontextmanager
async def serving(path: str, accepted: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    """A server on a Unix socket, whose connections have ended afterwards. Its clients hang up before."""
    tasks = set[asyncio.Task[Any]]()

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await accepted(reader, writer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(noted, path)
    try:
        yield
    finally:
        server.close()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()


@asynccontextmanager
async def running(folder: Path, server: Server) -> AsyncIterator[tuple[RequestStore, Runner]]:
    """A runner that claims what the test adds, and is stopped after the block."""
    store = await open_sqlite(folder / "store")
    path, pace = str(folder / "http.sock"), Pace(4)
    client = SelfClient(path, "secret", pace)
    runner = Runner(
        store.requests,
        client,
        pace,
        most=4,
        metrics=Recorder(),
        changed=lambda: server.changes.append(runner.num_running),
    )
    runner.may_claim.set()
    task = asyncio.create_task(runner.run())
    async with serving(path, server.accepted), asyncio.timeout(PATIENCE):
        yield store.requests, runner
        task.cancel()
        await asyncio.wait([task])
        await runner.stop()
        client.close()
    await store.close()


def new(**changes: object) -> NewRequest:
    fields: dict[str, object] = {"owner": "team", "route": "/v1/embeddings", "body": b"{}"}
    fields |= {"retry": RetryPolicy(max_attempts=3, initial_delay_ms=0, max_delay_ms=0)}
    return NewRequest(**{**fields, **changes})  # type: ignore[arg-type]


async def when_ended(store: RequestStore, request_id: str, owner: str = "team") -> RequestView:
    while (view := await store.view(owner, request_id)) is None or view.status in ("QUEUED", "IN_PROGRESS"):
        pass  # the store answers in a thread
    return view


async def ended(folder: Path, answers: Answers) -> tuple[RequestView, Result | None, Server]:
    server = Server(answers)
    async with running(folder, server) as (store, _):
        request_id = await store.add(new(headers=(("accept", "a/b"),)))
        view = await when_ended(store, request_id)
        return view, await store.result("team", request_id), server


async def test_what_is_sent_and_kept(tmp_path: Path) -> None:
    view, result, server = await ended(tmp_path, [OK])

    assert view.status is Status.SUCCEEDED
    assert result is not None
    assert (result.status_code, result.body, result.headers) == (200, OK[1], (("x-embedline-shape", "1"),))
    (head,) = server.heads
    assert head.startswith("POST /v1/embeddings HTTP/1.1\r\n")
    sent = {"accept: a/b", "x-embedline-class: bulk", "x-api-key: secret.team"}
    assert {*sent, f"x-request-id: {view.request_id}"} <= set(head.split("\r\n"))
    assert server.changes == [1, 0]


@pytest.mark.parametrize(
    ("answer", "code", "message", "times"),
    [
        ((500, b'{"message":"the engine failed"}'), "MODEL_PREDICT_ERROR", "status 500: the engine failed", 3),
        *(
            ((status, b"not JSON"), "MODEL_INVALID_INPUT", f"status {status}: an error without a message", 1)
            for status in (400, 413, 415, 422)
        ),
        ((401, b"not JSON"), "INTERNAL_SERVER_ERROR", "status 401: an error without a message", 1),
        ((404, b"not JSON"), "MODEL_DOES_NOT_EXIST", "status 404: an error without a message", 1),
    ],
    ids=["after the last attempt", "400", "413", "415", "422", "401", "404"],
)
async def test_it_has_failed_with_the_routes_answer(
    answer: tuple[int, bytes], code: str, message: str, times: int, tmp_path: Path
) -> None:
    view, result, server = await ended(tmp_path, [answer])
    assert (view.status, len(server.heads)) == (Status.FAILED, times)
    assert [(one.code, one.message) for one in view.errors] == [(code, message)]
    assert result is not None
    assert (result.status_code, result.body) == answer


@pytest.mark.parametrize(
    ("changes", "answer", "code"),
    [
        ((http_client, "_LOST_SECONDS", 0.0), LOST, "MODEL_PREDICT_ERROR"),
        ((runner_module, "_MAX_RUN_SECONDS", 0.01), NEVER, "MODEL_PREDICT_TIMEOUT"),
        ((runner_module, "_MAX_RESULT_BYTES", 3), OK, "MODEL_INVALID_INPUT"),
    ],
    ids=["the server ends at every attempt", "it runs too long", "the answer is too large"],
)
async def test_a_request_without_an_answer_has_failed(
    changes: tuple[Any, str, float],
    answer: tuple[int, bytes],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(*changes)
    view, result, _ = await ended(tmp_path, [answer])
    assert (view.status, view.errors[0].code, result) == (Status.FAILED, code, None)


async def test_what_runs_at_the_end_is_queued_again(tmp_path: Path) -> None:
    server = Server([NEVER])
    async with running(tmp_path, server) as (store, _):
        request_id = await store.add(new())
        await server.asked.wait()
    after = await open_sqlite(tmp_path / "store")
    view = await after.requests.view("team", request_id)
    await after.close()
    assert view is not None
    assert view.status is Status.QUEUED


async def test_a_disk_without_room_is_logged_once_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_module, "_STORE_SECONDS", 0.0)
    async with running(tmp_path, Server([OK])) as (store, _):
        finish, refusals = store.finish, 0

        async def refused_twice(request_id: str, outcome: Finished) -> bool:
            nonlocal refusals
            refusals += 1
            if refusals <= 2:
                raise StoreFull("the disk took no more")
            return await finish(request_id, outcome)

        monkeypatch.setattr(store, "finish", refused_twice)
        view = await when_ended(store, await store.add(new()))
    assert (view.status, refusals) == (Status.SUCCEEDED, 3)
    assert sum("can't be kept yet" in record.message for record in caplog.records) == 1


class Ceilings(Server):
    """One request at a time is computed; those of some owners are refused, as over their ceiling."""

    def __init__(self, over: str) -> None:
        super().__init__([OK])
        self.over = over
        self.order: list[str] = []

    def answer(self, head: str) -> tuple[int, bytes, str]:
        owner = head.split("x-api-key: secret.")[1].split("\r\n")[0]
        self.order.append(owner)
        status, more = (429, "retry-after: 30\r\n") if owner in self.over else (200, "")
        return status, b"{}", more


async def all_ended(store: RequestStore, owner: str, ids: Sequence[str]) -> None:
    for request_id in ids:
        assert (await when_ended(store, request_id, owner)).status is Status.SUCCEEDED


@pytest.mark.parametrize("over", ["a", "abcde"])
@pytest.mark.holds("Fair shares")
async def test_keys_over_their_ceilings_stop_nobody_elses_requests(tmp_path: Path, over: str) -> None:
    """They are put back one after another, and wait in the store as others do."""
    async with running(tmp_path, server := Ceilings(over)) as (store, _):
        for owner in over * 20:
            await store.add(new(owner=owner))
        await until(lambda: {*server.order} == {*over})
        await all_ended(store, "z", [await store.add(new(owner="z")) for _ in range(30)])
        counts = await store.counts(None)
        assert counts.in_progress <= 4 * len(over)
        assert counts.queued[0] + counts.in_progress == 20 * len(over), "none of them has ended"


@pytest.mark.holds("Fair shares")
async def test_a_key_with_a_long_queue_takes_turns_with_others(tmp_path: Path) -> None:
    async with running(tmp_path, server := Ceilings("")) as (store, runner):
        runner.may_claim.clear()
        first = [await store.add(new(owner="a")) for _ in range(40)]
        while (await store.counts(None)).in_progress:
            pass  # the store answers in a thread
        last = [await store.add(new(owner="b", priority=2)) for _ in range(4)]
        runner.may_claim.set()
        await all_ended(store, "b", last)
        await all_ended(store, "a", first)
    assert "".join(server.order).rindex("b") < 30


async def test_what_is_refused_ends_when_it_is_taken_again(tmp_path: Path) -> None:
    """Requests that were put back begin anew, and none is lost."""
    async with running(tmp_path, Server([(429, b"{}")] * 100 + [OK])) as (store, _):
        await all_ended(store, "team", [await store.add(new()) for _ in range(40)])
