"""An ASGI application that sends each request to a server's Unix socket and gives back what it answers.

For the few requests that come through Serve's own proxy, which holds them while there is no replica. This module goes
to Ray's processes by value, so it imports nothing of ours.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

_Message = Mapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

# Of one connection alone.
_NOT_FORWARDED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"expect", b"upgrade", b"te"})
_OF_BODIES = frozenset({b"content-length", b"transfer-encoding"})  # a request with a body has one of them
_OF_AIOHTTP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # which it would add


class Forward:
    """Of one replica."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def __call__(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        """One request, or Serve's words at start and end. Raises aiohttp's errors where the server ends meanwhile."""
        if scope["type"] == "lifespan":
            while (kind := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{kind}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        import aiohttp
        import yarl

        has_body = any(name.lower() in _OF_BODIES for name, _ in scope["headers"])
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in _kept(scope["headers"])]
        connector = aiohttp.UnixConnector(self._socket)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=_OF_AIOHTTP, timeout=aiohttp.ClientTimeout()
        ) as session:
            asked = session.request(
                scope["method"],
                yarl.URL(f"http://localhost{target.decode('ascii')}", encoded=True),  # as it came
                headers=headers,
                data=_body(receive) if has_body else None,
                allow_redirects=False,
            )
            async with asked as answer:
                kept = [(name.lower(), value) for name, value in _kept(answer.raw_headers)]
                await send({"type": "http.response.start", "status": answer.status, "headers": kept})
                async for piece in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})


def _kept(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _NOT_FORWARDED]


async def _body(receive: _Receive) -> AsyncIterator[bytes]:
    """Raises ConnectionError once the client is gone."""
    while (message := await receive())["type"] == "http.request":
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
    raise ConnectionError("the client is gone")
