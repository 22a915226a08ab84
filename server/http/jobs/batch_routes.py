"""OpenAI's routes of files and batches, on FastAPI."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from server.dialects.reading.json_body import BOM, parse
from server.http.jobs.async_predict import NO_JOBS
from server.http.jobs.refusals import calling
from server.http.jobs.upload import received
from server.jobs.client import JobsClient
from server.jobs.messages import Refused, Reply
from server.requests.errors import InvalidRequest, NoSuchRoute, PayloadTooLarge
from wire.frames import Buffer

OWNER = "embedline.owner"  # in a scope: whose requests, files and batches are shown
_MAX_BODY_BYTES = 64 * 1024  # of a new batch
_DEFAULT_LIMIT = 20
_MAX_LIMIT = 100
_WHOLE = re.compile(r"[0-9]{1,9}(\.0{1,9})?")  # `2.0` too, as in bodies


class NewBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


_NEW_BATCH = msgspec.json.Decoder(NewBatch)


class BatchRoutes:
    """Each raises RequestError."""

    def __init__(self, jobs: JobsClient | None) -> None:
        self._jobs = jobs

    async def upload(self, request: Request) -> Response:
        with calling():
            return JSONResponse(await received(request, self._there(), request.scope[OWNER]))

    async def files(self, request: Request) -> Response:
        return await self._page("file_list", request)

    async def file(self, request: Request) -> Response:
        return JSONResponse((await self._call("file_view", request, request.path_params)).fields)

    async def delete_file(self, request: Request) -> Response:
        await self._call("file_delete", request, request.path_params)
        return JSONResponse({"id": request.path_params["file_id"], "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """All bytes, a piece at a time."""
        info = (await self._call("file_view", request, request.path_params)).fields
        first = (await self._call("file_read", request, {"file_id": info["id"], "offset": 0})).body
        jobs = self._there()

        async def more(offset: int) -> Buffer:
            return (await jobs.call("file_read", request.scope[OWNER], {"file_id": info["id"], "offset": offset})).body

        return in_pieces(first, info["bytes"], more, headers={"content-type": "application/octet-stream"})

    async def create(self, request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                raise PayloadTooLarge(f"the body of a batch may have {_MAX_BODY_BYTES} bytes")
        new = parse(_NEW_BATCH, bytes(body).removeprefix(BOM))
        fields = {**msgspec.to_builtins(new), "metadata": new.metadata or {}}
        return JSONResponse((await self._call("batch_create", request, fields)).fields)

    async def batches(self, request: Request) -> Response:
        return await self._page("batch_list", request)

    async def batch(self, request: Request) -> Response:
        return JSONResponse((await self._call("batch_view", request, request.path_params)).fields)

    async def cancel(self, request: Request) -> Response:
        return JSONResponse((await self._call("batch_cancel", request, request.path_params)).fields)

    async def _page(self, what: str, request: Request) -> Response:
        limit = request.query_params.get("limit", str(_DEFAULT_LIMIT))
        if not _WHOLE.fullmatch(limit) or not 1 <= float(limit) <= _MAX_LIMIT:
            raise InvalidRequest(f"limit must be 1 to {_MAX_LIMIT}", param="limit")
        fields = {"after": request.query_params.get("after"), "limit": int(float(limit))}
        return JSONResponse((await self._call(what, request, fields)).fields)

    async def _call(self, what: str, request: Request, fields: dict[str, Any]) -> Reply:
        with calling():
            return await self._there().call(what, request.scope[OWNER], dict(fields))

    def _there(self) -> JobsClient:
        if self._jobs is None:
            raise NoSuchRoute(NO_JOBS)
        return self._jobs


def in_pieces(
    first: Buffer,
    num_bytes: int,
    more: Callable[[int], Awaitable[Buffer]],
    *,
    status: int = 200,
    headers: Mapping[str, str],
) -> Response:
    """An answer of which one piece is here at a time: its client may not read it. `more` gives the piece from there."""

    async def pieces() -> AsyncIterator[memoryview]:
        piece, offset = first, 0
        while piece:
            yield memoryview(piece)
            offset += len(piece)
            try:
                piece = await more(offset) if offset < num_bytes else b""
            except Refused:
                return  # fewer bytes than announced: the client sees that it is not whole

    return StreamingResponse(pieces(), status_code=status, headers={**headers, "content-length": str(num_bytes)})
