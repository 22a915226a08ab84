"""A request's way through a store: added, claimed, ended, seen by its owner."""

import asyncio
from typing import Any

import pytest

from server.features.jobs.store.store import IdempotencyConflict, Store, StoreUnavailable
from server.features.jobs.types import Finished, JobError, QueueCounts, Result, RetryPolicy, Status, WebhookStatus
from tests.server.jobs.store.stores import ANSWER, BEGIN, SUCCESS, WEBHOOK, Stores, ended, request, view_of


@pytest.mark.holds("Every bound")
async def test_a_result_is_read_in_pieces(store: Store) -> None:
    whole = Result(200, (("x-a", "b"),), bytes(range(256)) * 5, "application/octet-stream")
    request_id = await ended(store, Finished(Status.SUCCEEDED, whole))
    pieces = []
    for offset in range(0, 1400, 500):
        found = await store.requests.result("anna", request_id, offset=offset, count=500)
        assert found is not None
        assert (found.num_bytes, found.headers, found.content_type) == (1280, whole.headers, whole.content_type)
        pieces.append(found.body)
    assert [len(piece) for piece in pieces] == [500, 500, 280]
    assert b"".join(pieces) == whole.body
    beyond = await store.requests.result("anna", request_id, offset=5000, count=500)
    assert beyond is not None
    assert beyond.body == b""
    assert await store.requests.result("bert", request_id, offset=0, count=500) is None


async def test_a_request_comes_back_as_it_went_in(store: Store) -> None:
    new = request(
        body=b"\x00\xff{}",
        headers=(("accept", "application/octet-stream"), ("x-a", "b")),
        priority=2,
        retry=RetryPolicy(5, initial_delay_ms=1, max_delay_ms=2),
    )
    request_id = await store.requests.add(new)
    (claimed,) = await store.requests.claim(10)
    assert (claimed.request_id, claimed.owner, claimed.route) == (request_id, new.owner, new.route)
    assert (claimed.headers, claimed.body, claimed.retry) == (new.headers, new.body, new.retry)
    assert (claimed.priority, claimed.created_at, claimed.num_claims) == (2, BEGIN, 1)


async def test_the_queue_goes_by_priority_then_age(store: Store) -> None:
    priorities = [2, 0, 1, 0, 2]
    ids = [await store.requests.add(request(priority=priority)) for priority in priorities]
    first, second = await store.requests.claim(2), await store.requests.claim(10)
    assert [claimed.request_id for claimed in first + second] == [ids[i] for i in (1, 3, 2, 0, 4)]
    assert await store.requests.claim(10) == []


async def test_the_status_follows_the_request(stores: Stores, store: Store) -> None:
    request_id = await store.requests.add(request(priority=1))
    seen = []
    for step in (None, store.requests.claim(1), store.requests.finish(request_id, SUCCESS)):
        stores.clock.now += 1
        if step is not None:
            await step
        view = await view_of(store, request_id)
        seen.append((view.status, view.status_at - BEGIN))
    assert seen == [(Status.QUEUED, 0), (Status.IN_PROGRESS, 2), (Status.SUCCEEDED, 3)]
    assert (view.route, view.priority, view.created_at) == ("/v1/embeddings", 1, BEGIN)
    assert view.webhook_status == WebhookStatus.NO_WEBHOOK_PROVIDED


async def test_a_failure_keeps_its_errors(store: Store) -> None:
    errors = (JobError("MODEL_PREDICT_ERROR", "the route answered 500"),)
    request_id = await ended(store, Finished(Status.FAILED, errors=errors))
    view = await view_of(store, request_id)
    assert (view.status, view.errors) == (Status.FAILED, errors)
    assert await store.requests.result("anna", request_id) is None


async def test_the_first_end_stays(store: Store) -> None:
    request_id = await ended(store)
    assert not await store.requests.finish(request_id, Finished(Status.FAILED))
    assert (await view_of(store, request_id)).status == Status.SUCCEEDED
    assert not await store.requests.finish("0" * 32, SUCCESS)


async def test_what_was_released_goes_first_again(store: Store) -> None:
    ids = [await store.requests.add(request(number)) for number in range(3)]
    await store.requests.claim(2)
    await store.requests.finish(ids[1], SUCCESS)
    await store.requests.release(ids)
    claimed = await store.requests.claim(10)
    assert [(one.request_id, one.num_claims) for one in claimed] == [(ids[0], 2), (ids[2], 1)]


async def test_only_what_is_queued_can_be_canceled(store: Store) -> None:
    first, second = [await store.requests.add(request(webhook_endpoint=WEBHOOK)) for _ in range(2)]
    assert await store.requests.cancel("anna", first)
    assert not await store.requests.cancel("anna", first)
    assert [claimed.request_id for claimed in await store.requests.claim(10)] == [second]
    assert not await store.requests.cancel("anna", second)
    view = await view_of(store, first)
    assert (view.status, view.webhook_status) == (Status.CANCELED, WebhookStatus.CANCELED)
    assert await store.requests.due_webhooks(10) == []


async def test_another_owner_sees_nothing(store: Store) -> None:
    request_id = await store.requests.add(request())
    assert await store.requests.view("bert", request_id) is None
    assert not await store.requests.cancel("bert", request_id)
    await store.requests.claim(1)
    assert await store.requests.result("anna", request_id) is None
    await store.requests.finish(request_id, SUCCESS)
    assert await store.requests.result("bert", request_id) is None
    assert await store.requests.result("anna", request_id) == ANSWER


async def test_a_key_gives_the_same_id_for_the_same_request(store: Store) -> None:
    new = request(idempotency_key="key")
    request_id = await store.requests.add(new)
    assert await store.requests.add(new) == request_id
    await store.requests.claim(1)
    await store.requests.finish(request_id, SUCCESS)
    assert await store.requests.add(new) == request_id
    assert await store.requests.add(request(idempotency_key="key", owner="bert")) != request_id
    assert len(await store.requests.claim(10)) == 1


@pytest.mark.parametrize(
    "changes", [{"body": b"other"}, {"route": "/rerank"}, {"priority": 1}, {"headers": (("accept", "a"),)}], ids=str
)
async def test_a_key_of_another_request_is_refused(changes: dict[str, Any], store: Store) -> None:
    await store.requests.add(request(idempotency_key="key"))
    with pytest.raises(IdempotencyConflict):
        await store.requests.add(request(**{"idempotency_key": "key", **changes}))
    assert len(await store.requests.claim(10)) == 1


async def test_the_same_key_at_once_is_one_request(store: Store) -> None:
    new = request(idempotency_key="key")
    assert len(set(await asyncio.gather(*(store.requests.add(new) for _ in range(20))))) == 1
    assert len(await store.requests.claim(100)) == 1


async def test_counts_are_by_priority_and_owner(stores: Stores, store: Store) -> None:
    for owner, priority in (("anna", 0), ("anna", 0), ("anna", 2), ("bert", 1)):
        await store.requests.add(request(owner=owner, priority=priority, webhook_endpoint=WEBHOOK))
        stores.clock.now += 1
    (claimed,) = await store.requests.claim(1)
    counts = await store.requests.counts(None)
    assert (counts.queued, counts.oldest_age, counts.in_progress) == ((1, 1, 1), 3, 1)
    of_bert = await store.requests.counts("bert")
    assert (of_bert.queued, of_bert.oldest_age, of_bert.in_progress) == ((0, 1, 0), 1, 0)
    await store.requests.finish(claimed.request_id, SUCCESS)
    pending = [(await store.requests.counts(owner)).webhooks_pending for owner in (None, "anna", "bert")]
    assert pending == [1, 1, 0]


async def test_an_empty_store_counts_nothing(store: Store) -> None:
    counts = await store.requests.counts(None)
    assert counts == QueueCounts((0, 0, 0), 0, 0, 0, 0, counts.quota_bytes)
    assert await store.requests.next_due() is None


async def test_all_is_there_when_the_store_is_opened_again(stores: Stores) -> None:
    store = await stores.open()
    ids = [await store.requests.add(request(number)) for number in range(3)]
    await store.requests.claim(1)
    await store.requests.finish(ids[0], SUCCESS)
    store = await stores.reopen()
    assert await store.requests.result("anna", ids[0]) == ANSWER
    assert [claimed.body for claimed in await store.requests.claim(10)] == [b"body 1", b"body 2"]


async def test_a_closed_store_refuses(stores: Stores) -> None:
    store = await stores.open()
    await stores.close()
    with pytest.raises(StoreUnavailable):
        await store.requests.add(request())
    with pytest.raises(StoreUnavailable):
        await store.requests.counts(None)


async def test_one_who_waits_hears_of_what_comes(stores: Stores, store: Store) -> None:
    assert await store.requests.claim(1) == []
    waiting = asyncio.create_task(store.requests.claimable(60))
    await store.requests.add(request())
    await waiting
    (claimed,) = await store.requests.claim(1)
    await store.requests.release([claimed.request_id])
    await store.requests.claimable(60)
    await store.requests.claimable(0)


async def test_one_who_waits_for_webhooks_hears_of_an_end(store: Store) -> None:
    request_id = await store.requests.add(request(webhook_endpoint=WEBHOOK))
    assert await store.requests.due_webhooks(1) == []
    await store.requests.finish(request_id, SUCCESS)
    await store.requests.webhook_due(60)
