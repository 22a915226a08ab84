"""OpenAI's routes of files and batches, on FastAPI."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from server.dialects.reading.json_body import parse_body
from server.http.jobs.async_predict import NO_JOBS
from server.http.jobs.refusals import calling
from server.http.jobs.upload import received
from server.jobs.client import JobsClient
from server.jobs.messages import Refused, Reply
from server.requests.errors import InvalidRequest, NoSuchRoute, PayloadTooLarge
from wire.frames import Buffer

OWNER = "embedline.owner"  # in a scope: whose requests, files and batches are shown
IS_HEAD = "embedline.is_head"  # in a scope: nothing of the body is sent
_MAX_BODY_BYTES = 256 * 1024  # of a new batch: its metadata may be written with escapes
# In a query: no sign, no zeros before it, ASCII alone; `2.0` too, as in bodies.
_INTEGER = re.compile(r"[1-9][0-9]{0,8}(\.0{1,9})?")
_DEFAULT_LIMIT = 20
_MAX_LIMIT = 100


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
        is_head = request.scope.get(IS_HEAD, False)
        asked = {"file_id": info["id"], "offset": 0, **({"count": 1} if is_head else {})}
        first = (await self._call("file_read", request, asked)).body
        headers = {"content-type": "application/octet-stream"}
        if is_head:
            return Response(headers={**headers, "content-length": str(info["bytes"])})
        jobs = self._there()

        async def more(offset: int) -> Buffer:
            return (await jobs.call("file_read", request.scope[OWNER], {"file_id": info["id"], "offset": offset})).body

        return in_pieces(first, info["bytes"], more, headers=headers)

    async def create(self, request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                raise PayloadTooLarge(f"the body of a batch may have {_MAX_BODY_BYTES} bytes")
        new = parse_body(_NEW_BATCH, bytes(body))
        fields = {**msgspec.to_builtins(new), "metadata": new.metadata or {}}
        return JSONResponse((await self._call("batch_create", request, fields)).fields)

    async def batches(self, request: Request) -> Response:
        return await self._page("batch_list", request)

    async def batch(self, request: Request) -> Response:
        return JSONResponse((await self._call("batch_view", request, request.path_params)).fields)

    async def cancel(self, request: Request) -> Response:
        return JSONResponse((await self._call("batch_cancel", request, request.path_params)).fields)

    async def delete_batch(self, request: Request) -> Response:
        await self._call("batch_delete", request, request.path_params)
        return JSONResponse({"id": request.path_params["batch_id"], "object": "batch", "deleted": True})

    async def _page(self, what: str, request: Request) -> Response:
        _check_list(request)
        limit = _integer(request, "limit", _DEFAULT_LIMIT, most=_MAX_LIMIT)
        fields = {"after": request.query_params.get("after"), "limit": limit}
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

    content = _pieces(first, num_bytes, more)
    return StreamingResponse(content, status_code=status, headers={**headers, "content-length": str(num_bytes)})


async def _pieces(piece: Buffer, num_bytes: int, more: Callable[[int], Awaitable[Buffer]]) -> AsyncIterator[memoryview]:
    offset = 0
    while piece:
        yield memoryview(piece)
        offset += len(piece)
        piece = b""  # it is not kept while the next one is read
        if offset < num_bytes:
            try:
                piece = await more(offset)
            except Refused:
                return  # fewer bytes than announced: the client sees that it is not whole


def _check_list(request: Request) -> None:
    """Raises InvalidRequest for what would choose or order what is listed in another way."""
    for name, value in request.query_params.multi_items():
        if name not in ("limit", "after") and (name, value) != ("order", "desc"):
            raise InvalidRequest("a list takes limit, after and order=desc, the newest first", param=name)


def _integer(request: Request, name: str, default: int, *, most: int) -> int:
    """A number of the query, from 1. Raises InvalidRequest."""
    text = request.query_params.get(name, str(default))
    if not _INTEGER.fullmatch(text) or float(text) > most:
        raise InvalidRequest(f"{name} must be 1 to {most}", param=name)
    return int(float(text))
