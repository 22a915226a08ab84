"""The parts of features in a frontend, and what a frontend's parts share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from socket import socket

from server.dialects.answers import Answer, openai_error
from server.dialects.route import Call, Route
from server.feature import Feature
from server.frontend.start import FrontendStart
from server.http.body import ASGIApp
from server.http.request import SharedByRequests
from server.requests.errors import NoSuchRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(SharedByRequests):
    """The objects that HTTP and the parts of features have in common."""

    start: FrontendStart


class Part:
    """The part of a feature in a frontend. A part has those of these methods that do something for it.

    listeners  sockets that HTTP is served on beside the server's own, as one of them
    routes     those of the feature
    """

    listeners: Sequence[socket] = ()
    routes: Sequence[Route] = ()

    async def open(self, app: ASGIApp) -> None:
        """Begin, before requests come. `app` answers requests over HTTP."""

    async def start(self) -> None:
        """Begin to accept connections, as the HTTP port does. Raises OSError; then the process ends in order."""

    def state_changed(self) -> None:
        """There is a newer STATE, or the server begins to drain."""

    async def stop(self, seconds: float) -> None:
        """End with the HTTP port: what is open has so long to finish."""

    async def stop_last(self, seconds: float) -> None:
        """End what open requests needed until now."""

    def close(self) -> None:
        """Refuse what still waits for an answer."""


def bound(routes: Sequence[Route], to: object) -> list[Route]:
    """The routes of a feature, whose answers get this object and the call."""
    return [replace(route, answer=partial(route.answer, to)) for route in routes if route.answer is not None]


class Off(Part):
    """A feature that is off: each of its routes answers how to have it."""

    def __init__(self, feature: Feature) -> None:
        async def refuse(call: Call) -> Answer:
            raise NoSuchRoute(f"start the server with {feature.flag} {feature.switch[1]} to have this route")

        self.routes = [
            Route(method=method, path=path, answer=refuse, error_shape=openai_error, summary=summary)
            for (method, path), summary in feature.routes.items()
        ]
