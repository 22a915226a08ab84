"""What a store does when it is full: it refuses new requests, and goes on when there is room again."""

import pytest

from server.jobs.store.errors import StoreFull
from server.jobs.store.store import OVERHEAD_BYTES, StoreLimits
from server.jobs.types import Document, Finished, Result, Status
from tests.server.jobs.store.stores import SUCCESS, Stores, request

pytestmark = pytest.mark.asyncio
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
    large = Result(200, (), b"x" * 8 * KIB)
    assert await store.requests.finish(request_id, Finished(Status.SUCCEEDED, large))
    assert await store.requests.result("anna", request_id) == large
    assert await store.requests.claim(1) == []
    with pytest.raises(StoreFull):
        await store.requests.add(request())
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
    document = Document("file", "file-1", "anna", "stored", b"{}", created_at=0, held_bytes=99 * KIB)
    with pytest.raises(StoreFull):
        await store.documents.put(document)
    await store.documents.put(Document("file", "file-1", "anna", "stored", b"{}", created_at=0, held_bytes=98 * KIB))
    with pytest.raises(StoreFull):
        await store.requests.add(request())
    with pytest.raises(StoreFull):
        await store.documents.replace(document)
    assert await store.documents.delete("anna", "file", "file-1")
    await store.requests.add(request())
