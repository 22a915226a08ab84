"""The calls that frontends may make to the jobs process: about async requests, files, batches and their numbers, and
the calls of operators. Each public method is a call: it takes the name of an API key, its fields and perhaps bytes, and
gives a value or a Reply. What it raises becomes an error of a request here.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from server.features.jobs.batches.batches import Batches, open_batches
from server.features.jobs.disk import FULL_ERRORS
from server.features.jobs.files import KIND as FILE_KIND
from server.features.jobs.files import PIECE_BYTES, FileInfo, Files
from server.features.jobs.gauges import counts_of
from server.features.jobs.store.store import IdempotencyConflict, Store, StoreFull, StoreUnavailable
from server.features.jobs.types import NewRequest, QueueCounts, RequestView
from server.features.jobs.webhook_addresses import AddressRefused, AddressRules
from server.features.rpc import Reply, RpcCall
from server.requests.errors import RETRY_AFTER, Conflict, InvalidRequest, NotFound, NotReady, RequestError
from wire.metrics import Recorder

CHUNK_BYTES = 1 << 20  # the most of a file in one call, in either direction
_PAGE = 500  # documents at a time
_Value = TypeVar("_Value")
Fields = dict[str, Any]
logger = logging.getLogger("embedline.jobs")


class Calls:
    """`changed` is called when the numbers of the queue have changed."""

    def __init__(
        self,
        store: Store,
        files: Files,
        batches: Batches,
        *,
        addresses: AddressRules,
        metrics: Recorder,
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._requests = store.requests
        self._documents = store.documents
        self._files = files
        self._batches = batches
        self._addresses = addresses
        self._metrics = metrics
        self._changed = changed
        self._clock = clock

    async def add(self, owner: str, *, body: memoryview, **fields: object) -> Fields:
        new = msgspec.convert({**fields, "owner": owner, "body": b""}, NewRequest)
        if new.webhook_endpoint is not None:
            self._addresses.check_url(new.webhook_endpoint)
        request_id = await self._requests.add(dataclasses.replace(new, body=bytes(body)))
        self._metrics.count("embedline_jobs_accepted_total", str(new.priority))
        self._changed()
        return {"request_id": request_id}

    async def view(self, owner: str, request_id: str) -> RequestView:
        return _there(await self._requests.view(owner, request_id), "async request")

    async def result(self, owner: str, request_id: str, offset: int = 0) -> Reply:
        """A piece of the result, with its status and headers; without a result, what is known of the request."""
        result = await self._requests.result(owner, request_id, offset=offset, count=PIECE_BYTES)
        if result is None:
            return Reply({"view": await self.view(owner, request_id)})
        fields = {"status_code": result.status_code, "headers": result.headers, "content_type": result.content_type}
        return Reply({"result": {**fields, "bytes": result.num_bytes}}, result.body)

    async def cancel(self, owner: str, request_id: str) -> Fields:
        is_canceled = await self._requests.cancel(owner, request_id)
        if is_canceled:
            self._metrics.count("embedline_jobs_total", "canceled")
            self._changed()
        return {"canceled": is_canceled, "view": await self.view(owner, request_id)}

    async def counts(self, owner: str) -> QueueCounts:
        return await self._requests.counts(owner)

    async def file_begin(self, owner: str, filename: str, most: int) -> Fields:
        return {"file_id": await self._files.begin(owner, filename, "batch", most)}

    async def file_append(self, owner: str, file_id: str, *, body: memoryview) -> None:
        await self._files.append(owner, file_id, body)

    async def file_end(self, owner: str, file_id: str) -> FileInfo:
        return await self._files.end(owner, file_id)

    async def file_abandon(self, owner: str, file_id: str) -> None:
        await self._files.abandon(owner, file_id)

    async def file_view(self, owner: str, file_id: str) -> FileInfo:
        return _there(await self._files.info(owner, file_id), "file")

    async def file_list(self, owner: str, after: str | None, limit: int) -> Fields:
        found = await self._files.newest(owner, after=after, limit=limit + 1)
        return _listed([msgspec.to_builtins(info) for info in found], limit)

    async def file_read(self, owner: str, file_id: str, offset: int, count: int = CHUNK_BYTES) -> Reply:
        piece = await self._files.read(owner, file_id, offset, min(count, CHUNK_BYTES))
        return Reply(None, _there(piece, "file"))

    async def file_delete(self, owner: str, file_id: str) -> None:
        _there(await self._batches.delete_file(owner, file_id) or None, "file")

    async def batch_create(self, owner: str, **fields: Any) -> Fields:
        return (await self._batches.create(owner, **fields)).shown()

    async def batch_view(self, owner: str, batch_id: str) -> Fields:
        return _there(await self._batches.get(owner, batch_id), "batch").shown()

    async def batch_list(self, owner: str, after: str | None, limit: int) -> Fields:
        found = await self._batches.newest(owner, after=after, limit=limit + 1)
        return _listed([state.shown() for state in found], limit)

    async def batch_cancel(self, owner: str, batch_id: str) -> Fields:
        return _there(await self._batches.cancel(owner, batch_id), "batch").shown()

    async def batch_delete(self, owner: str, batch_id: str) -> None:
        _there(await self._batches.delete(owner, batch_id) or None, "batch")

    async def document_counts(self, owner: str) -> Fields:
        found = await open_batches(self._documents)
        batches = counts_of((one for one in found if one.owner == owner), self._clock())
        count, held_bytes = await self._documents.held(owner, FILE_KIND)
        return {"batches": batches, "files": {"count": count, "bytes": held_bytes}}

    # The calls of `embedline jobs`, by the socket that frontends have. No route of clients leads here.
    async def holders(self, _: str) -> Fields:
        counts = await self._requests.counts(None)
        return {"held": await self._requests.holders(), "quota_bytes": counts.quota_bytes}

    async def remove_held(self, owner: str) -> Fields:
        """Removes what has ended of this owner: batches, files that no open batch needs, results whose webhooks are
        settled."""
        removed = {"batches": 0, "files": 0}
        for state in await self._all(self._batches, owner):
            with contextlib.suppress(Conflict):  # it is open
                removed["batches"] += await self._batches.delete(owner, state.id)
        for info in await self._all(self._files, owner):
            with contextlib.suppress(Conflict):  # an open batch needs it
                removed["files"] += await self._batches.delete_file(owner, info.id)
        await self._requests.end_ttl(owner)
        while await self._requests.purge():
            pass
        left = (await self._requests.holders()).get(owner, 0)
        logger.warning("an operator has removed what the key %s held; %d bytes are left", owner or "(none)", left)
        return {"removed": removed, "left": left}

    async def _all(self, source: Any, owner: str) -> list[Any]:
        found: list[Any] = []
        while True:
            after = found[-1].id if found else None
            page = await source.newest(owner, after=after, limit=_PAGE)
            found += page
            if len(page) < _PAGE:
                return found


def answering(calls: object) -> Callable[[RpcCall], Awaitable[None]]:
    """A function that answers a call by the method of `calls` that has its name."""
    methods = {name: getattr(calls, name) for name in vars(type(calls)) if not name.startswith("_")}

    async def answer(call: RpcCall) -> None:
        given = {**call.fields, "body": call.body} if call.body else call.fields
        try:
            found = await methods[call.what](call.owner, **given)
        except Exception as error:
            if (refused := _refusal(error)) is None:
                raise
            raise refused from None
        if isinstance(found, Reply):
            call.answer(found.value, [found.body])
        else:
            call.answer(found)

    return answer


def _refusal(error: Exception) -> RequestError | None:
    """The error that clients are told; None for a bug, and for what is told already."""
    match error:
        case AddressRefused():
            return InvalidRequest(str(error), param="webhook_endpoint")
        case IdempotencyConflict():
            return Conflict("another request had this idempotency key", param="idempotency-key")
        case StoreFull():
            return NotReady(str(error), reason="jobs_full")
        case StoreUnavailable():
            return NotReady(str(error), reason="jobs_unavailable")
        case OSError() if error.errno in FULL_ERRORS:
            return NotReady("the disk is full", reason="jobs_full")
        case OSError():
            logger.error("the folder of files can't be used: %s", error)
            message = f"the folder of files can't be used now: {error.strerror or type(error).__name__}"
            return NotReady(message, retry_after=RETRY_AFTER["jobs_full"], reason="jobs_unavailable")
    return None


def _there(found: _Value | None, what: str) -> _Value:
    if found is None:
        raise NotFound(f"there is no {what} with this id, or not any more")
    return found


def _listed(found: list[Fields], limit: int) -> Fields:
    """A page; one more than `limit` was asked for, to see whether there is another."""
    page = found[:limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(found) > limit}
