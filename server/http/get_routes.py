"""The GET routes, on FastAPI: health, what is served, metrics, the OpenAPI page."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from embedline import __version__
from engine.model.tasks import Task
from engine.types import OutputKind
from server.dialects.table import ROUTES
from server.dialects.writing.openai_shapes import openai_error
from server.http.info import info as describe
from server.http.info import output_names
from server.http.openapi import with_post_routes
from server.metrics.registry import MetricsSource
from server.requests.errors import NoSuchRoute, WrongMethod
from server.requests.models import ServedModel, ServerState

_POST_PATHS = frozenset(route.path for route in ROUTES)
_MAX_COMPARED = 100  # characters of an unknown path; comparing takes time that grows with their square


def make_app(state: ServerState, metrics: MetricsSource) -> FastAPI:
    """The FastAPI application of one frontend."""
    app = FastAPI(
        title="Embedline",
        version=__version__,
        description="An embedding inference server",
        redirect_slashes=False,  # a redirect would repeat the client's Host header, and lose a proxy's https
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = with_post_routes(app)  # type: ignore[method-assign]  # FastAPI's own way of extending it

    @app.get("/livez", summary="Whether this process answers")
    async def livez() -> Response:
        return PlainTextResponse("ok")

    @app.get("/readyz", summary="Whether a request sent now would be computed")
    @app.get("/health", summary="The same as /readyz, as TEI names it")
    @app.get("/", summary="The same as /readyz, as TEI has it too")
    @app.get("/ping", summary="The same as /readyz, as SageMaker names it")
    async def readyz(model: str | None = None) -> Response:
        """Of the whole server, or of one of its models."""
        if model is not None and model not in state.names:
            return PlainTextResponse("no model has that name", status_code=404)
        reason = state.why_not_ready() if model is None else state.why_model_not_ready(model)
        if reason is None:
            return PlainTextResponse("ok")
        return PlainTextResponse(reason, status_code=503, headers={"retry-after": "2"})

    @app.get("/info", summary="What is served, by which engine, and why")
    async def info() -> Response:
        return JSONResponse(describe(state))

    @app.get("/v1/models", summary="The served models, as OpenAI lists them")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": _model_cards(state)})

    @app.get("/metrics", summary="Prometheus metrics of the whole server")
    async def metrics_page() -> Response:
        try:
            page = await metrics()
        except TimeoutError:
            return PlainTextResponse("the supervisor does not answer", status_code=503, headers={"retry-after": "5"})
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def _model_cards(state: ServerState) -> list[dict[str, Any]]:
    loaded = {model.name: model for model in state.models.models} if state.models else {}
    return [
        {
            "id": name,
            "object": "model",
            "created": loaded[name].facts["loaded_at"] if name in loaded else 0,
            "owned_by": "embedline",
            "ready": state.why_model_not_ready(name) is None,
            **(_facts(loaded[name]) if name in loaded else {}),
        }
        for name in state.names
    ]


def _facts(model: ServedModel) -> dict[str, Any]:
    return {
        "dimensions": model.dimensions,
        "max_model_len": model.max_seqlen,  # as vLLM calls it
        "max_input_length": model.max_seqlen,
        "tasks": _tasks(model),
        "outputs": output_names(model.outputs),
        "prompts": sorted(model.facts["prompts"]),
        "dtype": model.facts["info"]["dtype"],
    }


def _tasks(model: ServedModel) -> list[str]:
    """What the model is for, and what else it gives."""
    beside = {OutputKind.SPARSE: Task.SPARSE, OutputKind.MULTI_VECTOR: Task.LATE_INTERACTION}
    return list(dict.fromkeys((model.task, *(task for kind, task in beside.items() if kind in model.outputs))))


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 in the same shape as every other error."""
    assert isinstance(error, HTTPException)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if (request.scope["path"].rstrip("/") or "/") in _POST_PATHS:  # POST never comes here
        headers["allow"] = ", ".join(filter(None, (headers.get("allow"), "POST")))
    if "allow" in headers:
        answer = openai_error(WrongMethod("this route does not have this method"))
    else:
        known = {*_POST_PATHS, *(getattr(route, "path", "/") for route in request.app.routes)}
        answer = openai_error(NoSuchRoute("no such route" + _nearest(request.scope["path"], known)))
    return Response(bytes(answer.body), status_code=answer.status, headers=headers, media_type="application/json")


def _nearest(path: str, known: Iterable[str]) -> str:
    """The end of a message, with the route that looks most like the path; "" if none does."""
    if len(path) > _MAX_COMPARED:
        return ""
    close = get_close_matches(path.rstrip("/").lower(), sorted(known), n=1)
    return f"; the nearest one is {close[0]}" if close else ""
