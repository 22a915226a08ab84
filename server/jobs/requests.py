"""The calls about async requests: accept, show, give the result, cancel, count."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from server.jobs.messages import PIECE_BYTES, Call, Fields, Reason, Refused, Reply
from server.jobs.service import Handler
from server.jobs.store.errors import IdempotencyConflict, StoreFull, StoreUnavailable
from server.jobs.store.store import RequestStore
from server.jobs.types import NewRequest, RequestView
from server.jobs.webhooks.addresses import AddressRefused, AddressRules
from wire.metrics import Recorder

_FULL_SECONDS = 10.0  # what clients are told while there is no room
_RETRY_SECONDS = 2.0
_Value = TypeVar("_Value")


class Requests:
    """Handlers by name. `changed` is called when the numbers of the queue have changed."""

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
