"""What frontends may ask of the jobs process: calls about async requests, files, batches and their numbers, and the
calls of operators. Each answers with a reply, or refuses; errors of a store or a disk are refusals here.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from server.features.jobs.batches.batches import Batches, BatchOpen, BatchProblem, FileInUse, TooManyBatches
from server.features.jobs.disk import FULL_ERRORS
from server.features.jobs.files import KIND as FILE_KIND
from server.features.jobs.files import FileProblem, Files, TooManyUploads
from server.features.jobs.gauges import counts_of, open_batches
from server.features.jobs.messages import CHUNK_BYTES, PIECE_BYTES, Call, Fields, Reason, Refused, Reply
from server.features.jobs.rpc import Handler
from server.features.jobs.store.store import (
    DocumentStore,
    IdempotencyConflict,
    RequestStore,
    StoreFull,
    StoreUnavailable,
)
from server.features.jobs.types import NewRequest, RequestView
from server.features.jobs.webhook_addresses import AddressRefused, AddressRules
from wire.metrics import Recorder

_FULL_SECONDS = 10.0  # what clients are told while there is no room
_RETRY_SECONDS = 2.0
_PAGE = 500  # documents at a time
_Value = TypeVar("_Value")
logger = logging.getLogger("embedline.jobs")


class Requests:
    """The calls about async requests: accept, show, give the result, cancel, count. Handlers by name.

    `changed` is called when the numbers of the queue have changed.
    """

    def __init__(
        self, store: RequestStore, *, addresses: AddressRules, metrics: Recorder, changed: Callable[[], None]
    ) -> None:
        self._store = store
        self._addresses = addresses
        self._metrics = metrics
        self._changed = changed

    def handlers(self) -> dict[str, Handler]:
        """What frontends may ask for."""
        return {
            "add": self._add,
            "view": self._view,
            "result": self._result,
            "cancel": self._cancel,
            "counts": self._counts,
        }

    async def _add(self, call: Call, body: memoryview) -> Reply:
        new = msgspec.convert({**call.fields, "owner": call.owner, "body": b""}, NewRequest)
        if new.webhook_endpoint is not None:
            try:
                self._addresses.check_url(new.webhook_endpoint)
            except AddressRefused as error:
                raise Refused(Reason.INVALID, str(error), param="webhook_endpoint") from None
        request_id = await asked(self._store.add(dataclasses.replace(new, body=bytes(body))))
        self._metrics.count("embedline_jobs_accepted_total", str(new.priority))
        self._changed()
        return Reply({"request_id": request_id})

    async def _view(self, call: Call, _: memoryview) -> Reply:
        return Reply(_fields_of(await self._seen(call)))

    async def _result(self, call: Call, _: memoryview) -> Reply:
        """A piece of the result, with its status and headers; without a result, what is known of the request."""
        request_id, offset = call.fields["request_id"], call.fields.get("offset", 0)
        result = await asked(self._store.result(call.owner, request_id, offset=offset, count=PIECE_BYTES))
        if result is None:
            return Reply({"view": _fields_of(await self._seen(call))})
        fields = {"status_code": result.status_code, "headers": result.headers, "content_type": result.content_type}
        return Reply({"result": {**fields, "bytes": result.num_bytes}}, result.body)

    async def _cancel(self, call: Call, _: memoryview) -> Reply:
        is_canceled = await asked(self._store.cancel(call.owner, call.fields["request_id"]))
        if is_canceled:
            self._metrics.count("embedline_jobs_total", "canceled")
            self._changed()
        return Reply({"canceled": is_canceled, "view": _fields_of(await self._seen(call))})

    async def _counts(self, call: Call, _: memoryview) -> Reply:
        return Reply(dataclasses.asdict(await asked(self._store.counts(call.owner))))

    async def _seen(self, call: Call) -> RequestView:
        view = await asked(self._store.view(call.owner, call.fields["request_id"]))
        if view is None:
            raise Refused(Reason.NOT_FOUND, "there is no async request with this id, or not any more")
        return view


class Documents:
    """The calls about files and batches. Handlers by name."""

    def __init__(self, files: Files, batches: Batches) -> None:
        self._files = files
        self._batches = batches

    def handlers(self) -> dict[str, Handler]:
        """What frontends may ask for."""
        return {
            "file_begin": self._file_begin,
            "file_append": self._file_append,
            "file_end": self._file_end,
            "file_abandon": self._file_abandon,
            "file_view": self._file_view,
            "file_list": self._file_list,
            "file_read": self._file_read,
            "file_delete": self._file_delete,
            "batch_create": self._batch_create,
            "batch_view": self._batch_view,
            "batch_list": self._batch_list,
            "batch_cancel": self._batch_cancel,
            "batch_delete": self._batch_delete,
        }

    async def _file_begin(self, call: Call, _: memoryview) -> Reply:
        fields = call.fields
        file_id = await _done(self._files.begin(call.owner, fields["filename"], "batch", fields["most"]))
        return Reply({"file_id": file_id})

    async def _file_append(self, call: Call, body: memoryview) -> Reply:
        await _done(self._files.append(call.owner, call.fields["file_id"], body))
        return Reply()

    async def _file_end(self, call: Call, _: memoryview) -> Reply:
        return _shown(await _done(self._files.end(call.owner, call.fields["file_id"])))

    async def _file_abandon(self, call: Call, _: memoryview) -> Reply:
        await _done(self._files.abandon(call.owner, call.fields["file_id"]))
        return Reply()

    async def _file_view(self, call: Call, _: memoryview) -> Reply:
        info = await _done(self._files.info(call.owner, call.fields["file_id"]))
        return _shown(_there(info, "file"))

    async def _file_list(self, call: Call, _: memoryview) -> Reply:
        limit, after = call.fields["limit"], call.fields["after"]
        found = await _done(self._files.newest(call.owner, after=after, limit=limit + 1))
        return _listed([msgspec.to_builtins(info) for info in found], limit)

    async def _file_read(self, call: Call, _: memoryview) -> Reply:
        count = min(call.fields.get("count", CHUNK_BYTES), CHUNK_BYTES)
        read = self._files.read(call.owner, call.fields["file_id"], call.fields["offset"], count)
        return Reply({}, _there(await _done(read), "file"))

    async def _file_delete(self, call: Call, _: memoryview) -> Reply:
        if not await _done(self._batches.delete_file(call.owner, call.fields["file_id"])):
            _there(None, "file")
        return Reply()

    async def _batch_create(self, call: Call, _: memoryview) -> Reply:
        return Reply((await _done(self._batches.create(call.owner, **call.fields))).shown())

    async def _batch_view(self, call: Call, _: memoryview) -> Reply:
        state = await _done(self._batches.get(call.owner, call.fields["batch_id"]))
        return Reply(_there(state, "batch").shown())

    async def _batch_list(self, call: Call, _: memoryview) -> Reply:
        limit, after = call.fields["limit"], call.fields["after"]
        found = await _done(self._batches.newest(call.owner, after=after, limit=limit + 1))
        return _listed([state.shown() for state in found], limit)

    async def _batch_cancel(self, call: Call, _: memoryview) -> Reply:
        state = await _done(self._batches.cancel(call.owner, call.fields["batch_id"]))
        return Reply(_there(state, "batch").shown())

    async def _batch_delete(self, call: Call, _: memoryview) -> Reply:
        if not await _done(self._batches.delete(call.owner, call.fields["batch_id"])):
            _there(None, "batch")
        return Reply()


class DocumentCounts:
    """The call about the numbers of batches and files. Handlers by name."""

    def __init__(self, documents: DocumentStore, clock: Callable[[], float]) -> None:
        self._documents = documents
        self._clock = clock

    def handlers(self) -> dict[str, Handler]:
        """What frontends may ask for."""
        return {"document_counts": self._counts}

    async def _counts(self, call: Call, _: memoryview) -> Reply:
        found = await asked(open_batches(self._documents))
        batches = counts_of((one for one in found if one.owner == call.owner), self._clock())
        count, held_bytes = await asked(self._documents.held(call.owner, FILE_KIND))
        return Reply({"batches": dataclasses.asdict(batches), "files": {"count": count, "bytes": held_bytes}})


class Holdings:
    """What each API key holds, for operators: shown, and removed where a key does not do it itself.

    No route of clients leads here: `embedline jobs` asks, by the socket that frontends have.
    """

    def __init__(self, requests: RequestStore, files: Files, batches: Batches) -> None:
        self._requests = requests
        self._files = files
        self._batches = batches

    def handlers(self) -> dict[str, Handler]:
        """The calls."""
        return {"holders": self._holders, "remove_held": self._remove}

    async def _holders(self, call: Call, _: memoryview) -> Reply:
        counts = await asked(self._requests.counts(None))
        return Reply({"held": await asked(self._requests.holders()), "quota_bytes": counts.quota_bytes})

    async def _remove(self, call: Call, _: memoryview) -> Reply:
        """What has ended of this owner: batches, files that no open batch needs, results whose webhooks are settled."""
        removed = {"batches": 0, "files": 0}
        for state in await self._all(self._batches, call.owner):
            with contextlib.suppress(BatchOpen):
                removed["batches"] += await asked(self._batches.delete(call.owner, state.id))
        for info in await self._all(self._files, call.owner):
            with contextlib.suppress(FileInUse):
                removed["files"] += await asked(self._batches.delete_file(call.owner, info.id))
        await asked(self._requests.end_ttl(call.owner))
        while await asked(self._requests.purge()):
            pass
        left = (await asked(self._requests.holders())).get(call.owner, 0)
        logger.warning("an operator has removed what the key %s held; %d bytes are left", call.owner or "(none)", left)
        return Reply({"removed": removed, "left": left})

    async def _all(self, source: Any, owner: str) -> list[Any]:
        found: list[Any] = []
        while True:
            after = found[-1].id if found else None
            page = await asked(source.newest(owner, after=after, limit=_PAGE))
            found += page
            if len(page) < _PAGE:
                return found


async def asked(answer: Awaitable[_Value]) -> _Value:
    """What a store says, its errors as refusals."""
    try:
        return await answer
    except StoreFull as error:
        raise Refused(Reason.FULL, str(error), retry_after=_FULL_SECONDS) from None
    except IdempotencyConflict:
        message = "another request had this idempotency key"
        raise Refused(Reason.CONFLICT, message, param="idempotency-key") from None
    except StoreUnavailable as error:
        raise Refused(Reason.UNAVAILABLE, str(error), retry_after=_RETRY_SECONDS) from None


def _fields_of(view: RequestView) -> Fields:
    fields: Fields = msgspec.to_builtins(view)
    return fields


async def _done(answer: Awaitable[_Value]) -> _Value:
    """What became of it, its errors as refusals."""
    try:
        return await asked(answer)
    except (FileProblem, BatchProblem) as error:
        raise Refused(Reason.INVALID, str(error), param=error.param) from None
    except FileInUse as error:
        raise Refused(Reason.CONFLICT, str(error), param="file_id") from None
    except BatchOpen as error:
        raise Refused(Reason.CONFLICT, str(error), param="batch_id") from None
    except (TooManyUploads, TooManyBatches) as error:
        raise Refused(Reason.FULL, str(error), retry_after=_FULL_SECONDS) from None
    except OSError as error:
        if error.errno in FULL_ERRORS:
            raise Refused(Reason.FULL, "the disk is full", retry_after=_FULL_SECONDS) from None
        logger.error("the folder of files can't be used: %s", error)
        message = f"the folder of files can't be used now: {error.strerror or type(error).__name__}"
        raise Refused(Reason.UNAVAILABLE, message, retry_after=_FULL_SECONDS) from None


def _there(found: _Value | None, what: str) -> _Value:
    if found is None:
        raise Refused(Reason.NOT_FOUND, f"there is no {what} with this id, or not any more")
    return found


def _shown(info: object) -> Reply:
    fields: Fields = msgspec.to_builtins(info)
    return Reply(fields)


def _listed(found: list[Fields], limit: int) -> Reply:
    """A page; one more than `limit` was asked for, to see whether there is another."""
    page = found[:limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return Reply({"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(found) > limit})
