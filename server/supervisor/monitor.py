"""The supervisor's own port, which answers when everything else is stuck: /metrics, /livez, /readyz."""

import logging
import socket
from collections.abc import Callable, Mapping

from server.dialects.answers import METRICS_TYPE, Answer, openai_error, text_answer
from server.http.access import Hosts, Keys
from server.http.body import ASGIApp, Receive, Scope, Send
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
) -> ASGIApp:
    """The application with /metrics, /livez and /readyz."""

    def answer(method: str, path: str, headers: Mapping[bytes, bytes]) -> Answer:
        if path not in ("/metrics", "/livez", "/readyz"):
            return text_answer("Not Found", 404)
        if method not in ("GET", "HEAD"):
            return text_answer("Method Not Allowed", 405, [(b"allow", b"GET, HEAD")])
        if path == "/metrics":
            try:
                hosts.check(method, path, headers)
                keys.check(method, path, headers)
            except (Forbidden, Unauthorized) as error:
                return openai_error(error)
            return text_answer(metrics(), kind=METRICS_TYPE)
        reason = why_not_ready() if path == "/readyz" else None
        return text_answer(reason or "ok", 503 if reason else 200)

    async def monitor(scope: Scope, receive: Receive, send: Send) -> None:
        status, headers, body = answer(scope["method"], scope["path"], dict(scope["headers"]))
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return monitor
