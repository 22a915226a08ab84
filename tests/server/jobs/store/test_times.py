"""What time does to a store: waits that end, results that are forgotten, webhooks that are due, clocks that jump."""

import pytest

from server.features.jobs.store.store import Store, StoreLimits
from server.features.jobs.types import Finished, Status, WebhookStatus
from tests.server.jobs.store.stores import ANSWER, BEGIN, SUCCESS, WEBHOOK, Stores, ended, request, view_of


async def status_of(store: Store, request_id: str) -> tuple[Status, WebhookStatus]:
    view = await view_of(store, request_id)
    return view.status, view.webhook_status


@pytest.mark.parametrize("by", ["claim", "expire"])
async def test_a_wait_that_was_too_long_ends(by: str, stores: Stores, store: Store) -> None:
    short = await store.requests.add(request(max_time_in_queue=10, webhook_endpoint=WEBHOOK))
    long = await store.requests.add(request(max_time_in_queue=11))
    stores.clock.now += 10
    if by == "expire":
        assert await store.requests.expire() == 1
    assert [claimed.request_id for claimed in await store.requests.claim(10)] == [long]
    assert await status_of(store, short) == (Status.EXPIRED, WebhookStatus.PENDING)
    (delivery,) = await store.requests.due_webhooks(10)
    assert (delivery.request_id, delivery.status, delivery.result) == (short, Status.EXPIRED, None)
    assert [error.code for error in delivery.errors] == ["EXPIRED"]
    assert not await store.requests.finish(short, SUCCESS)
    assert await store.requests.expire() == (1 if by == "claim" else 0), "each is told of once, whatever has ended it"


async def test_what_ended_is_forgotten_after_its_ttl(stores: Stores) -> None:
    store = await stores.open(StoreLimits(result_ttl=100))
    request_id = await ended(store, idempotency_key="key")
    stores.clock.now += 99
    assert await store.requests.purge() == 0
    stores.clock.now += 1
    assert await store.requests.purge() == 1
    assert await store.requests.view("anna", request_id) is None
    assert await store.requests.result("anna", request_id) is None
    assert (await store.requests.counts(None)).held_bytes == 0
    assert await store.requests.add(request(idempotency_key="key")) != request_id


async def test_a_webhook_is_due_once_and_again_after_its_lease(stores: Stores, store: Store) -> None:
    request_id = await ended(store, webhook_endpoint=WEBHOOK)
    (first,) = await store.requests.due_webhooks(10)
    assert (first.request_id, first.owner, first.endpoint) == (request_id, "anna", WEBHOOK)
    assert (first.status, first.result, first.errors) == (Status.SUCCEEDED, ANSWER, ())
    assert (first.ended_at, first.num_attempts) == (BEGIN, 1)
    assert await store.requests.due_webhooks(10) == []
    stores.clock.now += 60
    (second,) = await store.requests.due_webhooks(10)
    assert (second.request_id, second.ended_at, second.num_attempts) == (request_id, BEGIN, 2)


async def test_a_delivered_webhook_is_done(stores: Stores, store: Store) -> None:
    request_id = await ended(store, webhook_endpoint=WEBHOOK)
    await store.requests.due_webhooks(10)
    await store.requests.delivered(request_id)
    await store.requests.delivery_failed(request_id, None)  # a second report changes nothing
    assert await status_of(store, request_id) == (Status.SUCCEEDED, WebhookStatus.SUCCEEDED)
    stores.clock.now += 86_399
    assert await store.requests.due_webhooks(10) == []
    assert await store.requests.purge() == 0
    stores.clock.now += 1
    assert await store.requests.purge() == 1


async def test_a_webhook_is_tried_again_when_asked(stores: Stores, store: Store) -> None:
    request_id = await ended(store, webhook_endpoint=WEBHOOK)
    await store.requests.due_webhooks(10)
    await store.requests.delivery_failed(request_id, BEGIN + 300)
    stores.clock.now += 299
    assert await store.requests.due_webhooks(10) == []
    assert await store.requests.next_due() == BEGIN + 300
    stores.clock.now += 1
    assert len(await store.requests.due_webhooks(10)) == 1


@pytest.mark.parametrize(
    ("outcome", "status"), [(SUCCESS, Status.WEBHOOK_FAILED), (Finished(Status.FAILED), Status.FAILED)], ids=str
)
async def test_a_webhook_that_is_given_up_keeps_the_result(outcome: Finished, status: Status, store: Store) -> None:
    request_id = await ended(store, outcome, webhook_endpoint=WEBHOOK)
    await store.requests.due_webhooks(10)
    await store.requests.delivery_failed(request_id, None)
    assert await status_of(store, request_id) == (status, WebhookStatus.FAILED)
    assert await store.requests.result("anna", request_id) == outcome.result


async def test_nothing_is_forgotten_while_its_webhook_is_pending(stores: Stores) -> None:
    store = await stores.open(StoreLimits(result_ttl=100))
    request_id = await ended(store, webhook_endpoint=WEBHOOK)
    await store.requests.due_webhooks(10)
    await store.requests.delivery_failed(request_id, BEGIN + 500)
    stores.clock.now += 500
    assert await store.requests.purge() == 0
    (delivery,) = await store.requests.due_webhooks(10)
    assert delivery.result == ANSWER
    await store.requests.delivered(request_id)
    assert await store.requests.purge() == 1


async def test_a_webhook_under_way_is_sent_again_after_a_restart(stores: Stores) -> None:
    store = await stores.open()
    request_id = await ended(store, webhook_endpoint=WEBHOOK)
    await store.requests.due_webhooks(10)
    store = await stores.reopen()
    stores.clock.now += 60
    assert [delivery.request_id for delivery in await store.requests.due_webhooks(10)] == [request_id]


async def test_the_next_thing_that_is_due_is_told(stores: Stores) -> None:
    store = await stores.open(StoreLimits(result_ttl=100))
    await ended(store)
    assert await store.requests.next_due() == BEGIN + 100
    await store.requests.add(request(max_time_in_queue=50))
    assert await store.requests.next_due() == BEGIN + 50
    await store.requests.cancel("anna", await store.requests.add(request(max_time_in_queue=10)))
    assert await store.requests.next_due() == BEGIN + 50


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
async def test_a_clock_that_goes_back_leaves_nothing_hanging(restart: bool, stores: Stores) -> None:
    limits = StoreLimits(result_ttl=100)
    store = await stores.open(limits)
    result = await ended(store)
    webhook = await ended(store, webhook_endpoint=WEBHOOK)
    await store.requests.due_webhooks(10)
    await store.requests.delivery_failed(webhook, BEGIN + 70)
    waiting = await store.requests.add(request(max_time_in_queue=50))
    stores.clock.now -= 1_000_000
    if restart:
        store = await stores.reopen(limits)
    await store.requests.expire()
    assert await store.requests.next_due() == stores.clock.now + 50
    stores.clock.now += 50
    assert await store.requests.expire() == 1
    assert await status_of(store, waiting) == (Status.EXPIRED, WebhookStatus.NO_WEBHOOK_PROVIDED)
    stores.clock.now += 20
    assert [delivery.request_id for delivery in await store.requests.due_webhooks(10)] == [webhook]
    stores.clock.now += 30
    assert await store.requests.result("anna", result) == ANSWER
    assert await store.requests.purge() == 1


async def test_a_clock_that_goes_forward_and_back_loses_no_request(stores: Stores, store: Store) -> None:
    request_id = await store.requests.add(request())
    (claimed,) = await store.requests.claim(1)
    stores.clock.now += 1_000_000
    await store.requests.expire()
    stores.clock.now -= 1_000_000
    assert await store.requests.finish(claimed.request_id, SUCCESS)
    assert await status_of(store, request_id) == (Status.SUCCEEDED, WebhookStatus.NO_WEBHOOK_PROVIDED)
