"""The supervisor's own port, which answers when everything else is stuck: /metrics, /livez, /readyz."""

import logging
import socket
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from server.dialects.error_shapes import openai_error
from server.http.auth import Keys
from server.http.hosts import Hosts
from server.requests.errors import Forbidden, Unauthorized
from server.settings.flag import SettingsError
from server.supervisor.listeners import bind

_DEFAULT_PROMETHEUS_PORT = 9000

logger = logging.getLogger("embedline.server")


def bind_monitor(hostname: str, port: int | None) -> socket.socket | None:
    """The supervisor's own port; None if the default is in use. Raises SettingsError for a port that was asked for."""
    if port == 0:
        return None
    if port is not None:
        return bind(hostname, port, "--prometheus-port")
    try:
        return bind(hostname, _DEFAULT_PROMETHEUS_PORT, "--prometheus-port")
    except SettingsError:
        logger.warning("port %d is in use, so /metrics is on the main port only", _DEFAULT_PROMETHEUS_PORT)
        return None


def make_monitor(
    metrics: Callable[[], str], why_not_ready: Callable[[], str | None], keys: Keys, hosts: Hosts
) -> Starlette:
    """The application with /metrics, /livez and /readyz."""

    async def metrics_page(request: Request) -> Response:
        try:
            # the request's own target: `request.url` is made of the Host header too, whatever that says
            path, headers_sent = request.scope["path"], dict(request.headers.raw)
            hosts.check(request.method, path, headers_sent)
            keys.check(request.method, path, headers_sent)
        except (Forbidden, Unauthorized) as error:
            answer = openai_error(error)
            headers = {name.decode(): value.decode() for name, value in answer.headers}
            return Response(bytes(answer.body), status_code=answer.status, headers=headers)
        return PlainTextResponse(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        reason = why_not_ready()
        return PlainTextResponse(reason or "ok", status_code=503 if reason else 200)

    monitor = Starlette(routes=[Route("/metrics", metrics_page), Route("/livez", livez), Route("/readyz", readyz)])
    monitor.router.redirect_slashes = False  # a redirect would lead to whatever the client's `Host` says
    return monitor
