"""The routes that may take their time, on FastAPI: health, facts, metrics, the OpenAPI page."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from embedline import __version__
from server.errors import NoSuchRoute, WrongMethod, openai_answer
from server.frontend_state import FrontendState
from server.info import info as describe
from server.metrics import MetricsSource
from server.openapi import with_hot_routes
from server.routes import ROUTES

_POST_PATHS = frozenset(route.path for route in ROUTES)


def make_app(state: FrontendState, metrics: MetricsSource) -> FastAPI:
    """The FastAPI application of one frontend."""
    app = FastAPI(
        title="Embedline",
        version=__version__,
        description="An embedding inference server",
        redirect_slashes=False,  # such an answer would repeat the client's own Host, and forget a proxy's https
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = with_hot_routes(app)  # type: ignore[method-assign]  # FastAPI's own way of extending it

    @app.get("/livez", summary="Whether this process answers")
    async def livez() -> Response:
        return PlainTextResponse("ok")

    @app.get("/readyz", summary="Whether a request sent now would be computed")
    @app.get("/health", summary="The same as /readyz, as TEI names it")
    @app.get("/", summary="The same as /readyz, as TEI has it too")
    @app.get("/ping", summary="The same as /readyz, as SageMaker names it")
    async def readyz() -> Response:
        reason = state.why_not_ready()
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
        return PlainTextResponse(await metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def _model_cards(state: FrontendState) -> list[dict[str, Any]]:
    if state.models is None:
        return []
    return [
        {
            "id": model.name,
            "object": "model",
            "created": model.facts["loaded_at"],
            "owned_by": "embedline",
            "dimensions": model.dimensions,
            "max_model_len": model.max_seqlen,
        }
        for model in state.models.models
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 in the same shape as every other error."""
    assert isinstance(error, HTTPException)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if (request.scope["path"].rstrip("/") or "/") in _POST_PATHS:  # only what is no POST gets as far as here
        headers["allow"] = ", ".join(filter(None, (headers.get("allow"), "POST")))
    if "allow" in headers:
        answer = openai_answer(WrongMethod("this route does not have that method"))
    else:
        answer = openai_answer(NoSuchRoute("no such route"))
    return Response(answer.body, status_code=answer.status, headers=headers, media_type="application/json")
