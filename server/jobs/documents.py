"""The calls about files and batches."""

import logging
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from server.jobs.batches.batches import Batches, BatchOpen, BatchProblem, FileInUse, TooManyBatches
from server.jobs.files import FileProblem, Files, TooManyUploads
from server.jobs.messages import CHUNK_BYTES, Call, Fields, Reason, Refused, Reply
from server.jobs.requests import asked
from server.jobs.service import Handler
from server.jobs.store.disk import FULL_ERRORS

_FULL_SECONDS = 10.0  # what clients are told while there is no room
_Value = TypeVar("_Value")

logger = logging.getLogger("embedline.jobs")


class Documents:
    """Handlers by name."""

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
