"""Documents of files and batches: kept, listed, changed by one at a time."""

from dataclasses import replace

import pytest

from server.features.jobs.store.store import Store, StoreError
from server.features.jobs.types import Document
from tests.server.jobs.store.stores import Stores


def batch(number: int = 1, *, owner: str = "anna", state: str = "validating") -> Document:
    return Document("batch", f"batch-{number}", owner, state, b"{}", created_at=float(number), held_bytes=7)


async def test_a_document_comes_back_as_it_went_in(stores: Stores, store: Store) -> None:
    await store.documents.put(batch())
    assert await store.documents.get("anna", "batch", "batch-1") == batch()
    store = await stores.reopen()
    assert await store.documents.get("anna", "batch", "batch-1") == batch()


async def test_another_owner_or_kind_has_none(store: Store) -> None:
    await store.documents.put(batch())
    assert await store.documents.get("bert", "batch", "batch-1") is None
    assert await store.documents.get("anna", "file", "batch-1") is None
    assert not await store.documents.delete("bert", "batch", "batch-1")
    assert not await store.documents.replace(replace(batch(), owner="bert"))
    assert await store.documents.newest("bert", "batch") == []
    assert await store.documents.get("anna", "batch", "batch-1") == batch()


async def test_an_id_is_taken_once(store: Store) -> None:
    await store.documents.put(batch())
    with pytest.raises(StoreError):
        await store.documents.put(batch(owner="bert"))


async def test_the_newest_come_first_by_pages(store: Store) -> None:
    for number in range(5):
        await store.documents.put(batch(number))
    await store.documents.put(batch(9, owner="bert"))
    first = await store.documents.newest("anna", "batch", limit=2)
    second = await store.documents.newest("anna", "batch", after=first[-1].document_id, limit=10)
    assert [one.document_id for one in first + second] == [f"batch-{number}" for number in (4, 3, 2, 1, 0)]
    assert await store.documents.newest("anna", "batch", after="batch-9") == []


async def test_what_an_owner_holds_is_added_up(store: Store) -> None:
    for number, owner in ((1, "anna"), (2, "bert"), (3, "anna"), (4, "anna")):
        await store.documents.put(batch(number, owner=owner))
    assert await store.documents.replace(replace(batch(1), held_bytes=100))
    assert await store.documents.delete("anna", "batch", "batch-4")
    assert await store.documents.held("anna", "batch") == (2, 107)
    assert await store.documents.held("anna", "file") == (0, 0)


async def test_documents_are_found_by_their_state(store: Store) -> None:
    for number, owner in ((1, "anna"), (2, "bert"), (3, "anna")):
        await store.documents.put(batch(number, owner=owner))
    assert await store.documents.replace(replace(batch(1), state="in_progress"))
    found = await store.documents.in_state("batch", "validating")
    assert [one.document_id for one in found] == ["batch-2", "batch-3"]
    found = await store.documents.in_state("batch", "in_progress")
    assert [(one.document_id, one.version) for one in found] == [("batch-1", 2)]


async def test_documents_of_a_state_come_by_pages(store: Store) -> None:
    for number in range(5):
        await store.documents.put(batch(number))
    first = await store.documents.in_state("batch", "validating", limit=2)
    second = await store.documents.in_state("batch", "validating", after=first[-1].document_id, limit=10)
    assert [one.document_id for one in first + second] == [f"batch-{number}" for number in range(5)]
    assert await store.documents.in_state("batch", "validating", after="batch-9") == []


async def test_of_two_who_change_a_document_one_does(store: Store) -> None:
    await store.documents.put(batch())
    kept = await store.documents.get("anna", "batch", "batch-1")
    assert kept is not None
    assert await store.documents.replace(replace(kept, content=b"first", held_bytes=9))
    assert not await store.documents.replace(replace(kept, content=b"second"))
    assert await store.documents.get("anna", "batch", "batch-1") == replace(
        kept, content=b"first", held_bytes=9, version=2
    )


async def test_a_deleted_document_is_gone(store: Store) -> None:
    await store.documents.put(batch())
    assert await store.documents.delete("anna", "batch", "batch-1")
    assert not await store.documents.delete("anna", "batch", "batch-1")
    assert not await store.documents.replace(batch())
    assert (await store.requests.counts(None)).held_bytes == 0
