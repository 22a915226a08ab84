"""What a store does when it is full: it refuses new requests, and goes on when there is room again."""

import pytest

from server.features.jobs.store.store import OVERHEAD_BYTES, StoreFull, StoreLimits
from server.features.jobs.types import Finished, Result, Status
from tests.server.jobs.store.stores import SUCCESS, WEBHOOK, Stores, ended, file, request, view_of

KIB = 1024


async def test_waiting_requests_take_at_most_half_of_the_quota(stores: Stores) -> None:
    store = await stores.open(StoreLimits(quota_bytes=20 * KIB))
    big = request(body=b"x" * 4 * KIB)
    request_id = await store.requests.add(big)
    with pytest.raises(StoreFull):
        await store.requests.add(big)
    await store.requests.claim(1)
    await store.requests.finish(request_id, SUCCESS)
    await store.requests.add(big)


async def test_as_many_requests_wait_as_may(stores: Stores) -> None:
    store = await stores.open(StoreLimits(max_queued=2))
    first, _ = [await store.requests.add(request()) for _ in range(2)]
    with pytest.raises(StoreFull):
        await store.requests.add(request())
    await store.requests.cancel("anna", first)
    await store.requests.add(request())


async def test_nothing_is_claimed_until_results_find_room(stores: Stores) -> None:
    store = await stores.open(StoreLimits(quota_bytes=8 * KIB, result_ttl=60))
    request_id = await store.requests.add(request())
    waiting = await store.requests.add(request())
    await store.requests.claim(1)
    large = Result(200, (), b"x" * 4 * KIB)
    assert await store.requests.finish(request_id, Finished(Status.SUCCEEDED, large))
    assert await store.requests.result("anna", request_id) == large
    assert await store.requests.claim(1) == []
    with pytest.raises(StoreFull):
        await store.requests.add(request(body=bytes(3 * KIB)))
    stores.clock.now += 60
    assert await store.requests.purge() == 1
    assert [claimed.request_id for claimed in await store.requests.claim(1)] == [waiting]


async def test_what_is_held_is_counted_through_all_states(stores: Stores) -> None:
    store = await stores.open(StoreLimits(result_ttl=60))
    request_id = await store.requests.add(request(body=b"x" * 1000, owner="a", route="/r"))
    held = [(await store.requests.counts(None)).held_bytes]
    await store.requests.claim(1)
    await store.requests.finish(request_id, Finished(Status.SUCCEEDED, Result(200, (), b"x" * 10)))
    held.append((await store.requests.counts(None)).held_bytes)
    store = await stores.reopen(StoreLimits(result_ttl=60))
    held.append((await store.requests.counts(None)).held_bytes)
    assert held == [OVERHEAD_BYTES + 1003, OVERHEAD_BYTES + 10, OVERHEAD_BYTES + 10]


async def test_a_file_of_a_document_counts(stores: Stores) -> None:
    store = await stores.open(StoreLimits(quota_bytes=100 * KIB))
    with pytest.raises(StoreFull):
        await store.documents.put(file(99 * KIB))
    await store.documents.put(file(96 * KIB))
    with pytest.raises(StoreFull):
        await store.requests.add(request(body=bytes(2 * KIB)))
    with pytest.raises(StoreFull):
        await store.documents.replace(file(99 * KIB))
    assert await store.documents.delete("anna", "file", "file-1")
    await store.requests.add(request())


async def test_results_that_came_together_do_not_overrun_the_quota(stores: Stores) -> None:
    limits = StoreLimits(quota_bytes=200 * KIB, result_ttl=60)
    store = await stores.open(limits)
    for number in range(40):
        await store.requests.add(request(number))
    claimed = await store.requests.claim(40)
    assert 1 < len(claimed) < 40
    large = Finished(Status.SUCCEEDED, Result(200, (), b"x" * 60 * KIB))
    kept = 0
    for one in claimed:
        try:
            kept += await store.requests.finish(one.request_id, large)
        except StoreFull:
            continue
        assert (await store.requests.counts(None)).held_bytes <= limits.quota_bytes
    assert kept == 2
    assert await store.requests.claim(40) == []  # by now the size of results is known
    stores.clock.now += 60
    await store.requests.purge()
    assert await store.requests.finish(claimed[-1].request_id, large)


async def test_a_result_that_can_never_be_kept_is_not_waited_for(stores: Stores) -> None:
    store = await stores.open(StoreLimits(quota_bytes=100 * KIB, key_share=0.5))
    request_id = await ended(store, Finished(Status.SUCCEEDED, Result(200, (), bytes(50 * KIB))))
    view = await view_of(store, request_id)
    assert view.status is Status.FAILED
    assert "may hold of --jobs-quota" in view.errors[0].message


async def test_an_owner_has_its_share_of_each_bound(stores: Stores) -> None:
    store = await stores.open(StoreLimits(quota_bytes=100 * KIB, key_share=0.5, max_queued=8))
    await store.documents.put(file(44 * KIB))
    for what in (request(body=bytes(5 * KIB)), request(body=bytes(30 * KIB))):
        with pytest.raises(StoreFull, match="key"):
            await store.requests.add(what)
    with pytest.raises(StoreFull, match="key"):
        await store.documents.replace(file(48 * KIB + 1))
    with pytest.raises(StoreFull, match="key"):
        await store.documents.put(file(8 * KIB, document_id="file-2"))
    await store.requests.add(request(owner="bert", body=bytes(20 * KIB)))
    await store.documents.delete("anna", "file", "file-1")
    for _ in range(4):
        await store.requests.add(request())
    with pytest.raises(StoreFull, match="4 requests of this key wait"):
        await store.requests.add(request())


async def test_an_owner_without_a_name_may_have_all(stores: Stores) -> None:
    store = await stores.open(StoreLimits(quota_bytes=100 * KIB, key_share=0.01))
    await store.documents.put(file(90 * KIB, owner=""))


async def test_what_each_owner_has_is_known_after_the_next_start(stores: Stores) -> None:
    limits = StoreLimits(quota_bytes=100 * KIB, key_share=0.5)
    store = await stores.open(limits)
    await store.documents.put(file(40 * KIB))
    await store.requests.add(request(owner="bert", body=bytes(20 * KIB)))
    held = (await store.requests.counts(None)).held_bytes
    store = await stores.reopen(limits)
    assert (await store.requests.counts(None)).held_bytes == held
    with pytest.raises(StoreFull, match="key"):
        await store.requests.add(request(body=bytes(8 * KIB)))
    with pytest.raises(StoreFull, match="key"):
        await store.requests.add(request(owner="bert", body=bytes(8 * KIB)))
    await store.requests.add(request(owner="carl", body=bytes(8 * KIB)))


async def test_an_owner_without_room_for_results_delays_no_other(stores: Stores) -> None:
    store = await stores.open(StoreLimits(quota_bytes=200 * KIB, key_share=0.5))
    ids = [await store.requests.add(request(owner=owner)) for owner in ("anna", "anna", "bert")]
    await store.documents.put(file(92 * KIB))
    assert [one.request_id for one in await store.requests.claim(9)] == ids[2:]
    await store.documents.delete("anna", "file", "file-1")
    assert [one.request_id for one in await store.requests.claim(9)] == ids[:2]
    await store.requests.release(ids)
    assert len(await store.requests.claim(9)) == 3


async def test_what_others_run_takes_the_room_of_their_results_alone(stores: Stores) -> None:
    """Else an owner with large results waits as long as another has much small work."""
    store = await stores.open(StoreLimits(quota_bytes=200 * KIB, key_share=0.5))
    large = Finished(Status.SUCCEEDED, Result(200, (), bytes(40 * KIB)))
    await ended(store, large, owner="bert")
    for _ in range(4):
        await store.requests.add(request(owner="anna"))
    assert len(await store.requests.claim(4)) == 4
    second = await store.requests.add(request(owner="bert"))
    assert [one.request_id for one in await store.requests.claim(4)] == [second]
    assert await store.requests.finish(second, large)
    await store.documents.put(file(84 * KIB, owner="carl"))
    await store.requests.add(request(owner="dora"))
    assert await store.requests.claim(4) == [], "what is left is for the results of those that run"


async def test_results_of_one_owner_are_forgotten_at_once(stores: Stores) -> None:
    store = await stores.open()
    whose = (("anna", None), ("anna", WEBHOOK), ("bert", None), ("anna", None))
    ids = [await ended(store, owner=owner, webhook_endpoint=webhook) for owner, webhook in whose]
    await store.requests.end_ttl("anna")
    assert await store.requests.purge() == 2
    assert await store.requests.view("anna", ids[1]) is not None
    assert await store.requests.view("bert", ids[2]) is not None
    assert set(await store.requests.holders()) == {"anna", "bert"}
