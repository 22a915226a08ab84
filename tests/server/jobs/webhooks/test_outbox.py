"""The outbox over a real store, with receivers on this machine and the store's clock in the test's hand."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from server.features.jobs import webhooks
from server.features.jobs.store.sqlite import open_sqlite
from server.features.jobs.store.store import RequestStore
from server.features.jobs.types import Delivery, Finished, JobError, NewRequest, Result, Status, WebhookStatus
from server.features.jobs.webhook_addresses import AddressRules
from server.features.jobs.webhooks import Outbox, Sender
from tests.batch_manager.peers import until
from tests.server.jobs.store.stores import Clock
from tests.server.jobs.webhooks.receiver import FAILED, OK, SILENT, receiving
from tests.server_e2e.running import PATIENCE


@asynccontextmanager
async def running(
    folder: Path, clock: Clock, counted: Callable[[str], None] = lambda outcome: None, *, is_killed: bool = False
) -> AsyncIterator[RequestStore]:
    """A store whose webhooks are delivered. After the block the process is stopped, or is gone as after a kill."""
    store = await open_sqlite(folder / "store", clock=clock)
    sender = Sender(AddressRules(allows_private=True), max_connections=webhooks.MAX_PARALLEL, timeout_s=30)
    box = Outbox(
        store.requests,
        sender,
        secrets=lambda: [],
        clock=clock,
        counted=counted,
        changed=lambda: counted("ended"),
    )
    task = asyncio.create_task(box.run())
    try:
        yield store.requests
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if is_killed:
            for attempt in box._tasks:
                attempt.cancel()
            await asyncio.gather(*box._tasks, return_exceptions=True)
        await box.stop(seconds=0)
        await sender.close()
        await store.close()


async def ended(store: RequestStore, endpoint: str, outcome: Finished, owner: str = "") -> str:
    """The id of a request that has ended."""
    request_id = await store.add(NewRequest(owner, "/v1/embeddings", b"{}", webhook_endpoint=endpoint))
    await store.claim(100)
    assert await store.finish(request_id, outcome)
    return request_id


async def when(store: RequestStore, request_id: str, status: WebhookStatus = WebhookStatus.SUCCEEDED) -> None:
    while (view := await store.view("", request_id)) is None or view.webhook_status is not status:  # noqa: ASYNC110
        await asyncio.sleep(0)


SUCCEEDED = Finished(Status.SUCCEEDED, Result(200, (), b'{"data":[0.5]}'))
RAW = Finished(Status.SUCCEEDED, Result(200, (), b"\x00\x01", "application/octet-stream"))
LARGE = Finished(Status.SUCCEEDED, Result(200, (), b"[" + b"1," * (2 << 20) + b"1]"))
FAILURE = Finished(Status.FAILED, errors=(JobError("MODEL_PREDICT_ERROR", "why"),))


@pytest.mark.parametrize(
    ("outcome", "data", "errors"),
    [
        (SUCCEEDED, {"data": [0.5]}, []),
        (RAW, {"content_type": "application/octet-stream", "base64": "AAE="}, []),
        (LARGE, {"bytes": 4194307, "path": "/async_request/ID/result"}, []),
        (FAILURE, None, [{"code": "MODEL_PREDICT_ERROR", "message": "why"}]),
    ],
    ids=["json", "raw bytes", "too large", "failed"],
)
async def test_the_body_is_basetens(tmp_path: Path, outcome: Finished, data: object, errors: list[object]) -> None:
    async with receiving(OK) as receiver, running(tmp_path, Clock()) as store:
        request_id = await ended(store, receiver.url, outcome)
        await when(store, request_id)
    (received,) = receiver.received
    body = json.loads(received.body.replace(request_id.encode(), b"ID"))
    assert body.pop("time").startswith("2027-01-15T08:00:00")
    assert body == {
        "request_id": "ID",
        "model_id": "embedline",
        "deployment_id": "embedline",
        "type": "async_request_completed",
        "data": data,
        "errors": errors,
    }
    assert received.headers["content-type"] == "application/json"


async def test_an_owner_has_as_many_webhooks_as_it_likes_one_after_another(tmp_path: Path) -> None:
    async with receiving(OK) as receiver, running(tmp_path, Clock()) as store:
        for _ in range(webhooks.MAX_PER_OWNER + 2):
            await ended(store, receiver.url, SUCCEEDED, owner="team")
            await receiver.until(1)
            receiver.received.clear()


async def test_a_receiver_that_fails_is_asked_again_with_the_same_bytes(tmp_path: Path) -> None:
    clock, outcomes = Clock(), list[str]()
    async with receiving(FAILED, OK) as receiver:
        async with running(tmp_path, clock, outcomes.append) as store:
            request_id = await ended(store, receiver.url, SUCCEEDED)
            await until(lambda: outcomes == ["failed", "ended"])
        clock.now += webhooks.MIN_PAUSE + 1
        async with running(tmp_path, clock, outcomes.append) as store:  # also by a process that came after it
            await when(store, request_id)
    first, second = receiver.received
    assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])
    assert first.headers["webhook-timestamp"] < second.headers["webhook-timestamp"]
    assert outcomes == ["failed", "ended", "delivered", "ended"]


@pytest.mark.parametrize(
    ("is_killed", "seconds"), [(True, 61), (False, 0)], ids=["killed, after the lease", "stopped, at once"]
)
async def test_an_attempt_that_was_cut_off_is_made_again_by_the_next_process(
    is_killed: bool, seconds: int, tmp_path: Path
) -> None:
    clock = Clock()
    async with receiving(SILENT, OK) as receiver:
        async with running(tmp_path, clock, is_killed=is_killed) as store:
            request_id = await ended(store, receiver.url, SUCCEEDED)
            await receiver.until(1)
        clock.now += seconds
        async with running(tmp_path, clock) as store:
            await when(store, request_id)
    assert len({(one.headers["webhook-id"], one.body) for one in receiver.received}) == 1
    assert len(receiver.received) == 2


async def test_a_result_is_not_held_while_a_receiver_is_silent(tmp_path: Path) -> None:
    async with receiving(SILENT) as receiver, running(tmp_path, Clock()) as store:
        await ended(store, receiver.url, LARGE)
        await receiver.until(1)
        await store.claim(1)  # the store has let go of what it gave before
        held = [one for one in gc.get_objects() if issubclass(type(one), Result) and one == LARGE.result]
        assert [one for one in held if one is not LARGE.result] == []


async def test_a_silent_receiver_does_not_stop_the_others(tmp_path: Path) -> None:
    async with receiving(SILENT) as silent, receiving(OK) as quick, running(tmp_path, Clock()) as store:
        for _ in range(40):
            await ended(store, silent.url, SUCCEEDED)
        request_id = await ended(store, quick.url, SUCCEEDED)
        await when(store, request_id)
        assert silent.most_open < webhooks.MAX_PARALLEL


async def test_what_waits_for_its_turn_does_not_wait_for_a_clock_that_was_set_back(tmp_path: Path) -> None:
    clock = Clock()
    async with receiving(SILENT) as silent, running(tmp_path, clock) as store:
        ids = [await ended(store, silent.url, SUCCEEDED) for _ in range(webhooks.MAX_PARALLEL)]
        await silent.until(8)
        clock.now -= webhooks.GIVE_UP_SECONDS
        ids.append(await ended(store, silent.url, SUCCEEDED))
        for _ in range(5):  # each lets the outbox go on by a step
            await store.due_webhooks(0)
    clock.now += 120
    later = await open_sqlite(tmp_path / "store", clock=clock)
    assert {one.request_id for one in await later.requests.due_webhooks(100)} == set(ids)
    await later.close()


async def test_many_silent_receivers_of_one_owner_do_not_stop_the_others(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(receiving(SILENT)) for _ in range(webhooks.MAX_PARALLEL + 8)]
        quick = await stack.enter_async_context(receiving(OK))
        store = await stack.enter_async_context(running(tmp_path, Clock()))
        for receiver in silent:
            await ended(store, receiver.url, SUCCEEDED, owner="anna")
        request_id = await ended(store, quick.url, SUCCEEDED)
        await when(store, request_id)
        assert sum(receiver.most_open for receiver in silent) <= webhooks.MAX_PER_OWNER


@pytest.mark.holds("Fair shares")
async def test_many_webhooks_of_one_owner_to_a_slow_host_delay_no_other_owners(tmp_path: Path) -> None:
    """Neither to that host nor to another, although the first owner's have been due for longer."""
    async with receiving(SILENT) as silent, receiving(OK) as quick, running(tmp_path, Clock()) as store:
        for _ in range(60):
            await ended(store, silent.url, SUCCEEDED, owner="anna")
        await silent.until(8)
        expected = {await ended(store, url, SUCCEEDED, owner="bert") for url in (silent.url, quick.url)}
        async with asyncio.timeout(PATIENCE):
            await until(lambda: expected <= {one.headers["webhook-id"] for one in (*silent.received, *quick.received)})
        assert silent.most_open < webhooks.MAX_PARALLEL


async def test_a_refused_address_ends_the_webhook_and_keeps_the_result(tmp_path: Path) -> None:
    async with running(tmp_path, Clock()) as store:
        request_id = await ended(store, "http://10.0.0.1:8000/", SUCCEEDED)
        await when(store, request_id, WebhookStatus.FAILED)
        assert await store.result("", request_id) == SUCCEEDED.result


async def test_pauses_grow_with_the_age_and_a_clock_that_jumps_gives_nothing_up() -> None:
    def delivery(attempts: int) -> Delivery:
        return Delivery("r", "", "", Status.SUCCEEDED, 0.0, None, (), attempts)

    pauses = [(webhooks.next_attempt_at(delivery(3), now) or 0) - now for now in (0.0, 20.0, 600.0, 80_000.0, -50.0)]
    assert pauses == [5.0, 20.0, 600.0, 3600.0, 5.0]
    assert webhooks.next_attempt_at(delivery(2), 1e6) is not None
    assert webhooks.next_attempt_at(delivery(30), 1e6) is None
