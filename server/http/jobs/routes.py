"""The other routes of async requests, on FastAPI: what became of one, its result, its end, and the queue."""

from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from server.http.jobs.async_predict import NO_JOBS, PLACE
from server.http.jobs.batch_routes import IS_HEAD, OWNER, BatchRoutes, in_pieces
from server.http.jobs.documented import documented
from server.http.jobs.refusals import calling
from server.jobs.client import JobsClient
from server.jobs.messages import Fields, Reply
from server.requests.errors import Conflict, NoSuchRoute
from wire.frames import Buffer

_UNENDED = ("QUEUED", "IN_PROGRESS")
_ASK_AGAIN = {"retry-after": "1"}  # seconds


def add_job_routes(app: FastAPI, jobs: JobsClient | None) -> None:
    """Without `jobs` each of them answers how to have it."""
    routes, of_batches = _Routes(jobs), BatchRoutes(jobs)
    for method, path, endpoint in (
        (*PLACE, routes.unreached),
        ("GET", "/async_request/{request_id}", routes.view),
        ("GET", "/async_request/{request_id}/result", routes.result),
        ("DELETE", "/async_request/{request_id}", routes.cancel),
        ("GET", "/async_queue_status", routes.queue_status),
        ("GET", "/jobs", routes.jobs),
        ("POST", "/v1/files", of_batches.upload),
        ("GET", "/v1/files", of_batches.files),
        ("GET", "/v1/files/{file_id}", of_batches.file),
        ("DELETE", "/v1/files/{file_id}", of_batches.delete_file),
        ("GET", "/v1/files/{file_id}/content", of_batches.content),
        ("POST", "/v1/batches", of_batches.create),
        ("GET", "/v1/batches", of_batches.batches),
        ("GET", "/v1/batches/{batch_id}", of_batches.batch),
        ("DELETE", "/v1/batches/{batch_id}", of_batches.delete_batch),
        ("POST", "/v1/batches/{batch_id}/cancel", of_batches.cancel),
    ):
        app.add_api_route(path, endpoint, methods=[method], **documented(method, path))


class _Routes:
    """Each raises RequestError."""

    def __init__(self, jobs: JobsClient | None) -> None:
        self._jobs = jobs

    async def unreached(self, request: Request) -> Response:
        """It is answered in front of FastAPI, and stands here for the OpenAPI page."""
        raise AssertionError

    async def view(self, request: Request) -> Response:
        """Status, webhook's status, times and errors."""
        return JSONResponse(_shown((await self._call("view", request)).fields))

    async def result(self, request: Request) -> Response:
        """What the route answered, byte for byte and a piece at a time; 202 until then."""
        reply = await self._call("result", request)
        result = reply.fields.get("result")
        if result is None:
            view = reply.fields["view"]
            if view["status"] in _UNENDED:
                return JSONResponse(_shown(view), status_code=202, headers=_ASK_AGAIN)
            raise Conflict(f"this request has no result: its status is {view['status']}")
        headers = {**dict(result["headers"]), "content-type": result["content_type"]}
        if request.scope.get(IS_HEAD, False):
            headers["content-length"] = str(result["bytes"])
            return Response(status_code=result["status_code"], headers=headers)

        async def more(offset: int) -> Buffer:
            assert self._jobs is not None
            fields = {**request.path_params, "offset": offset}
            return (await self._jobs.call("result", request.scope[OWNER], fields)).body

        return in_pieces(reply.body, result["bytes"], more, status=result["status_code"], headers=headers)

    async def cancel(self, request: Request) -> Response:
        """Only while it is QUEUED."""
        fields = (await self._call("cancel", request)).fields
        if not fields["canceled"]:
            raise Conflict(f"only a request that is QUEUED can be canceled, and this one is {fields['view']['status']}")
        return JSONResponse({**_shown(fields["view"]), "canceled": True})

    async def queue_status(self, request: Request) -> Response:
        """In Baseten's words."""
        counts = (await self._call("counts", request)).fields
        return JSONResponse(
            {
                "model_id": "embedline",
                "deployment_id": "embedline",
                "num_queued_requests": sum(counts["queued"]),
                "num_in_progress_requests": counts["in_progress"],
            }
        )

    async def jobs(self, request: Request) -> Response:
        """What waits, by priority, how long, and how much room it takes; the batches that are open, and the files."""
        counts = (await self._call("counts", request)).fields
        queued = {str(priority): number for priority, number in enumerate(counts.pop("queued"))}
        documents = (await self._call("document_counts", request)).fields
        return JSONResponse({"queued": queued, **counts, **documents})

    async def _call(self, what: str, request: Request) -> Reply:
        if self._jobs is None:
            raise NoSuchRoute(NO_JOBS)
        with calling():
            return await self._jobs.call(what, request.scope[OWNER], dict(request.path_params))


def _shown(view: Fields) -> dict[str, Any]:
    """As Baseten shows it, with route and priority beside it."""
    times = {name: datetime.fromtimestamp(view[name], UTC).isoformat() for name in ("created_at", "status_at")}
    return {**view, "model_id": "embedline", "deployment_id": "embedline", **times}
