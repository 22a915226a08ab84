"""The parts of features in a frontend, and what a frontend's parts share."""

from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket

from fastapi import FastAPI

from server.dialects.route import Answer
from server.feature import Feature
from server.frontend.start import FrontendStart
from server.http.body import ASGIApp
from server.http.request import HeaderList, PassedOn, PassOn, Read, SharedByRequests
from server.requests.errors import NoSuchRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(SharedByRequests):
    """The objects that HTTP and the parts of features have in common."""

    start: FrontendStart


class Part:
    """The part of a feature in a frontend. A part has those of these methods that do something for it.

    listeners  sockets that HTTP is served on beside the server's own, as one of them
    passed_on  the route that is answered in front of FastAPI
    """

    listeners: Sequence[socket] = ()
    passed_on: PassedOn | None = None

    def add_routes(self, app: FastAPI) -> None:
        """Add the routes that FastAPI answers."""

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


class Off(Part):
    """A feature that is off: each of its routes answers how to have it."""

    def __init__(self, feature: Feature) -> None:
        self._feature = feature
        self.passed_on = self if feature.passed_on else None
        self.route = feature.passed_on

    def at(self, method: str, path: str) -> PassOn | None:
        """The answer to a request there; None if it is not this route."""
        before, name, _ = self.route.partition("{")
        is_there = path.startswith(before) if name else path == before
        return self._answer if method == "POST" and is_there else None

    def add_routes(self, app: FastAPI) -> None:
        """Add routes with the same paths and methods."""
        for method, path in self._feature.routes:
            app.add_api_route(path, self._refuse, methods=[method], response_model=None)

    async def _answer(self, read: Read, headers: HeaderList, owner: str) -> Answer:
        await self._refuse()
        raise AssertionError

    async def _refuse(self) -> None:
        raise NoSuchRoute(f"start the server with {self._feature.flag} {self._feature.switch[1]} to have this route")
