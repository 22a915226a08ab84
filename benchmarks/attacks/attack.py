"""What an attack is made of."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PREPARED = b"PREPARED"  # in what is sent: what `prepare` has given
PIECE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What some connections do, again and again until they are stopped."""

    name: str
    pieces: Callable[[], Iterator[bytes]]  # what one connection sends, piece by piece
    connections: int  # at once
    every: float  # seconds from one connection to the next that takes its place, at least
    pause: float = 0.0  # seconds after each piece
    answers: float = 1  # after so many a connection is closed; inf: it stays until the server closes it
    bytes_per_second: float = math.inf  # that a connection reads; 0: nothing
    is_on_monitor: bool = False  # whether it goes to --prometheus-port
    expected: frozenset[str] = frozenset()  # statuses of all answers
    prepare: Callable[[int], str] = lambda port: ""  # what the server has to have before it
    beside: Callable[[int], None] | None = None  # what another key does, again and again; it raises where that fails


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A whole request."""
    named = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join(named).encode() + b"\r\n\r\n" + body


def once(request: bytes) -> Callable[[], Iterator[bytes]]:
    """One request and nothing more."""
    return lambda: iter([request])
