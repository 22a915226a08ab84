"""FastAPI behind the edge, made when it is first called: making it takes as long as twenty requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from fastapi import FastAPI
from starlette.routing import BaseRoute

from server.features.table import FEATURES
from server.frontend.parts import Off, Part
from server.http.body import Receive, Scope, Send
from server.http.get_routes import make_app
from server.requests.models import ModelsState
from wire.page import Page


@dataclass
class Fallback:
    state: ModelsState
    needs_key: bool
    metrics_auth: bool
    parts: Sequence[Part]

    @property
    def routes(self) -> list[BaseRoute]:
        """Those of any state."""
        return fallback_routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._made(scope, receive, send)

    @cached_property
    def _made(self) -> FastAPI:
        return make_app(
            self.state,
            _metrics_text,
            features=[part.add_routes for part in self.parts],
            needs_key=self.needs_key,
            metrics_auth=self.metrics_auth,
        )


@cache
def fallback_routes() -> list[BaseRoute]:
    page = Page.create(num_frontends=1, num_managers=1, num_models=1, num_keys=1)
    features = [Off(feature).add_routes for feature in FEATURES]
    return make_app(ModelsState(page), _metrics_text, features=features).routes


async def _metrics_text() -> str:
    return "metrics of the whole server\n"
