"""The routes on FastAPI: health, what is served, metrics, the OpenAPI page, and those of dialects and features.

Most have no body; some features' routes take one by POST, as files and batches do.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from embedline import __version__
from server.dialects.route import Answer, PlainRoute, retry_after
from server.dialects.table import PLAIN_ROUTES, ROUTES, plain_error_shape
from server.feature import loaded
from server.features.table import FEATURES
from server.http.info import info as describe
from server.http.info import model_cards
from server.http.openapi import describe as describe_api
from server.requests.errors import ERRORS, RETRY_AFTER, ModelNotFound, NoSuchRoute, NotReady, RequestError, WrongMethod
from server.requests.models import ModelsState

AddRoutes = Callable[[FastAPI], None]
MetricsSource = Callable[[], Awaitable[str]]  # Prometheus's text format; raises TimeoutError

_POST_PATHS = frozenset(route.path for route in ROUTES)
_RETRY = {"retry-after": retry_after(ERRORS[NotReady].retry_after)}
_NO_MODEL = "no model has that name"
_MAX_COMPARED = 100  # characters of an unknown path; comparing takes time that grows with their square


def make_app(
    state: ModelsState,
    metrics: MetricsSource,
    *,
    features: Sequence[AddRoutes] = (),
    needs_key: bool = False,
    metrics_auth: bool = False,
) -> FastAPI:
    """The FastAPI application of one frontend, with the routes of features. It checks no key; its OpenAPI page says
    where one is needed."""
    app = FastAPI(
        title="Embedline",
        version=__version__,
        description="An embedding inference server",
        redirect_slashes=False,  # a redirect would repeat the client's Host header, and lose a proxy's https
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestError, _request_error)
    app.openapi = describe_api(  # type: ignore[method-assign]  # FastAPI's own way of extending it
        app,
        state,
        routes=lambda: _documented(state, metrics),
        needs_key=needs_key,
        metrics_auth=metrics_auth,
    )
    _add_openapi(app)
    _add_routes(app, state, metrics, features)
    return app


def _documented(state: ModelsState, metrics: MetricsSource) -> list[BaseRoute]:
    """The routes as the page shows them: those of features too that are off, and of which little is loaded else."""
    page = FastAPI()
    _add_routes(page, state, metrics, [loaded(feature.documents) for feature in FEATURES if feature.documents])
    return page.routes


def _add_routes(app: FastAPI, state: ModelsState, metrics: MetricsSource, features: Sequence[AddRoutes]) -> None:
    for route in PLAIN_ROUTES:
        app.add_api_route(route.path, _endpoint(route, state), methods=[route.method], include_in_schema=False)

    _add_health(app, state)
    _add_models(app, state)
    for add_routes in features:
        add_routes(app)

    @app.get("/load", summary="How much there is to do, for balancers")
    async def load(model: str | None = None) -> Response:
        """Of the whole server, or of one of its models."""
        if model is not None and model not in state.names:
            return JSONResponse({"ready": False, "reason": _NO_MODEL}, status_code=404)
        report = state.load(model)
        headers = {"cache-control": "no-store", **({} if report.ready else _RETRY)}
        return JSONResponse(asdict(report), status_code=200 if report.ready else 503, headers=headers)

    @app.get("/info", summary="What is served, by which engine, and why")
    async def info() -> Response:
        return JSONResponse(describe(state))

    @app.get("/metrics", summary="Prometheus metrics of the whole server", response_class=PlainTextResponse)
    async def metrics_page() -> Response:
        try:
            page = await metrics()
        except TimeoutError:
            return PlainTextResponse(
                "the supervisor does not answer",
                status_code=503,
                headers={"retry-after": retry_after(RETRY_AFTER["no_metrics"])},
            )
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_openapi(app: FastAPI) -> None:
    """Add the page in place of FastAPI's own route, which writes the page anew for each request: that takes as long as
    50 others."""
    app.router.routes[:] = [route for route in app.routes if getattr(route, "path", "") != app.openapi_url]
    written: tuple[Any, bytes] = (None, b"")

    @app.get("/openapi.json", include_in_schema=False)
    @app.get("/api-doc/openapi.json", include_in_schema=False)  # where TEI has it
    async def page(request: Request) -> Response:
        nonlocal written
        if written[0] is not (schema := app.openapi()):
            written = schema, msgspec.json.encode(schema)
        body = written[1]
        if prefix := request.scope["root_path"]:
            body = b'{"servers":%b,%b' % (msgspec.json.encode([{"url": prefix}]), body[1:])
        return Response(body, media_type="application/json")


def _add_health(app: FastAPI, state: ModelsState) -> None:
    @app.get("/livez", summary="Whether this process answers", response_class=PlainTextResponse)
    async def livez() -> Response:
        return PlainTextResponse("ok")

    has_started = False

    @app.get("/startupz", summary="Whether every model has been ready once", response_class=PlainTextResponse)
    async def startupz() -> Response:
        """For an orchestrator, which asks the other two only after this one was 200."""
        nonlocal has_started
        status, reason = (200, "ok") if has_started else _readiness(state, None)
        has_started = status == 200
        return PlainTextResponse(reason, status_code=status, headers=_RETRY if status == 503 else None)

    @app.get("/readyz", summary="Whether a request sent now would be computed", response_class=PlainTextResponse)
    @app.get("/", summary="The same as /readyz, as TEI has it too", response_class=PlainTextResponse)
    @app.get("/ping", summary="The same as /readyz, as SageMaker names it", response_class=PlainTextResponse)
    @app.get("/-/healthz", include_in_schema=False)  # as Ray Serve's proxies ask
    async def readyz(model: str | None = None) -> Response:
        """Of the whole server, or of one of its models."""
        status, reason = _readiness(state, model)
        return PlainTextResponse(reason, status_code=status, headers=_RETRY if status == 503 else None)

    @app.get("/health", summary="The same as /readyz in JSON, as Infinity and TEI have it")
    async def health(model: str | None = None) -> Response:
        """Of the whole server, or of one of its models."""
        status, reason = _readiness(state, model)
        content: dict[str, Any] = {"status": reason, "unix": int(time.time())}
        if status == 503:
            content |= {"error": reason, "error_type": "Unhealthy"}  # TEI's
        return JSONResponse(content, status_code=status, headers=_RETRY if status == 503 else None)


def _add_models(app: FastAPI, state: ModelsState) -> None:
    @app.get("/v1/models", summary="The served models, as OpenAI lists them")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": model_cards(state)})

    @app.get("/models", summary="The same in Infinity's words")
    async def infinity_models() -> Response:
        """Infinity's client takes no other owner."""
        return JSONResponse(
            {"object": "list", "data": [card | {"owned_by": "infinity"} for card in model_cards(state)]}
        )

    @app.get("/v1/models/{name:path}", summary="The one that a request means by this name")
    async def model_card(name: str) -> Response:
        own = state.own_name(name)
        card = next((card for card in model_cards(state) if card["id"] == own), None)
        if card is None:
            raise ModelNotFound("no model has that name; GET /v1/models lists them", param="model")
        return JSONResponse(card)


def _endpoint(route: PlainRoute, state: ModelsState) -> Callable[[], Awaitable[Response]]:
    """FastAPI's handler of a dialect's route."""

    async def endpoint() -> Response:
        return _response(route.answer(state))

    return endpoint


def _response(answer: Answer) -> Response:
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(bytes(answer.body), status_code=answer.status, headers=headers)


def _readiness(state: ModelsState, model: str | None) -> tuple[int, str]:
    """Status and reason, of the whole server or of one of its models."""
    if model is not None and model not in state.names:
        return 404, _NO_MODEL
    reason = state.why_not_ready() if model is None else state.why_model_not_ready(model)
    return (200, "ok") if reason is None else (503, reason)


async def _request_error(request: Request, error: Exception) -> Response:
    """Answers what any of the routes raises, in the shape of every other error of the path."""
    assert isinstance(error, RequestError)
    return _response(plain_error_shape(request.scope["path"].removeprefix(request.scope["root_path"]))(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 in the same shape as every other error of the path."""
    assert isinstance(error, HTTPException)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    path = request.scope["path"].removeprefix(request.scope["root_path"])
    shape = plain_error_shape(path)
    methods = {"POST"} if path in _POST_PATHS else set()  # POST never comes here
    for route in request.app.routes:  # a path's methods may be spread over several routes; Starlette names the first's
        methods |= route.methods if route.matches(request.scope)[0] is not Match.NONE else set()
    if methods:
        headers["allow"] = ", ".join(sorted(methods))
    if "allow" in headers:
        answer = shape(WrongMethod("this route does not have this method"))
    else:
        known = {*_POST_PATHS, *(getattr(route, "path", "/") for route in request.app.routes)}
        answer = shape(NoSuchRoute("no such route" + _nearest(path, known)))
    return Response(bytes(answer.body), status_code=answer.status, headers=headers, media_type="application/json")


def _nearest(path: str, known: Iterable[str]) -> str:
    """The end of a message, with the route that looks most like the path; "" if none does."""
    if len(path) > _MAX_COMPARED:
        return ""
    close = get_close_matches(path.rstrip("/").lower(), sorted(known), n=1)
    return f"; the nearest one is {close[0]}" if close else ""
