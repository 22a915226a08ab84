"""Cross-origin requests: which web pages a browser lets ask. Off unless an origin is allowed."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware

from server.http.body import App

_METHODS = ("GET", "POST")
# What a page may read of an answer beside the body.
_READABLE = (
    "retry-after",
    "x-embedline-dtype",
    "x-embedline-prompt-tokens",
    "x-embedline-shape",
    "x-embedline-truncated-inputs",
    "x-request-id",
)


def with_cors(app: App, origins: Sequence[str]) -> App:
    """The application itself where no origin is allowed. What a browser asks beforehand needs no API key."""
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=_METHODS, allow_headers=["*"], expose_headers=_READABLE
    )
