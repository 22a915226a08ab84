"""The attacks on a server without keys: what each connection sends, how often, how many of them at once, and how a
server should answer.

Rates are such that the attacker takes little of the machine's two cores: what is measured is the server, not the race
for cores.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator

from benchmarks.attacks.attack import PIECE, Attack, once, post

MODEL, RERANKER = "m", "reranker"  # as the attacked server serves them
_MEGABYTE = 1_000_000


def _get(path: str, *headers: str) -> bytes:
    named = headers if any(header.startswith("host:") for header in headers) else ("host: localhost", *headers)
    return "\r\n".join([f"GET {path} HTTP/1.1", *named]).encode() + b"\r\n\r\n"


def _in_turn(requests: list[bytes]) -> Callable[[], Iterator[bytes]]:
    """Each connection sends the next one."""
    turns = itertools.cycle(requests)
    return lambda: iter([next(turns)])


def _trailers() -> Iterator[bytes]:
    """One value without end."""
    yield b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\na: "
    yield from itertools.repeat(b"x" * PIECE)


def _embed(**fields: object) -> bytes:
    return json.dumps({"model": MODEL, **fields}).encode()


_numbers = itertools.count()  # equal requests at the same time are computed once, so no two are equal


def _unread_rows() -> Iterator[bytes]:
    start = next(_numbers) * 2048
    yield post("/v1/embeddings", _embed(input=[f"text {number}" for number in range(start, start + 2048)]))


def _sent_ahead() -> Iterator[bytes]:
    texts = (f"text {next(_numbers)}" for _ in range(1500))
    yield b"".join(post("/v1/embeddings", _embed(input=text, encoding_format="base64")) for text in texts)


_LISTS = b'{"input":"a","model":"m","other":[' + b"[]," * (4 * _MEGABYTE) + b"0]}"
_LONG_INSTRUCTION = {"model": RERANKER, "query": "a", "documents": ["b"], "instruction": "be kind " * 1_250_000}
_UPGRADES = _get("/livez", "connection: upgrade", "upgrade: h2c") * 3500
_UNCLEAR = [
    b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"GET /livez HTTP/0.9\r\nhost: a\r\n\r\n",
    b"GET /livez HTTP/2.0\r\nhost: a\r\n\r\n",
    b"GET  /livez HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nhost: a b\r\n\r\n",
]
_OF_WEB_PAGES = [
    post("/v1/embeddings", _embed(input="a"), "content-type: text/plain", "origin: http://page.example"),
    post("/v1/embeddings", _embed(input="a"), "content-type: text/plain").replace(b"localhost", b"page.example"),
]

ATTACKS = (
    Attack(name="nothing", pieces=once(b""), connections=0, every=1),
    Attack(
        name="trailers without end",
        pieces=_trailers,
        pause=PIECE / (5 * _MEGABYTE),
        connections=4,
        every=1,
        answers=math.inf,
        expected=frozenset({"431"}),
    ),
    Attack(
        name="12 MB of empty lists in a field that no route knows",
        pieces=once(post("/v1/embeddings", _LISTS)),
        connections=1,
        every=1,
        expected=frozenset({"400"}),
    ),
    Attack(
        name="12 MB of brackets",
        pieces=once(post("/v1/embeddings", b"[" * (12 * _MEGABYTE))),
        connections=1,
        every=1,
        expected=frozenset({"400"}),
    ),
    Attack(
        name="Host headers with a path, on --prometheus-port",
        pieces=once(_get("/metrics", "host: x/livez?")),
        connections=2,
        every=0.04,
        is_on_monitor=True,
        expected=frozenset({"400"}),
    ),
    Attack(
        name="300 silent connections to --prometheus-port",
        pieces=once(b""),
        connections=300,
        every=3,
        answers=math.inf,
        is_on_monitor=True,
    ),
    Attack(
        name="instructions of 10 MB to a reranker",
        pieces=once(post("/rerank", json.dumps(_LONG_INSTRUCTION).encode())),
        connections=1,
        every=1,
        expected=frozenset({"400"}),
    ),
    Attack(
        name="3,500 offers to upgrade, sent ahead",
        pieces=once(_UPGRADES),
        connections=1,
        every=2,
        answers=3500,
        expected=frozenset({"200"}),
    ),
    Attack(
        name="1,500 requests sent ahead",
        pieces=_sent_ahead,
        connections=2,
        every=1,
        answers=1500,
        expected=frozenset({"200"}),
    ),
    Attack(
        name="2,048 rows as JSON that nobody reads",
        pieces=_unread_rows,
        connections=100,
        every=1,
        answers=math.inf,
        bytes_per_second=0,
    ),
    Attack(
        name="empty lines and nothing more",
        pieces=lambda: itertools.repeat(b"\r\n"),
        pause=0.5,
        connections=200,
        every=1,
        answers=math.inf,
    ),
    Attack(
        name="slow readers of /metrics",
        pieces=once(_get("/metrics") * 10),
        connections=50,
        every=1,
        answers=math.inf,
        bytes_per_second=1000,
        expected=frozenset({"200"}),
    ),
    Attack(
        name="slow readers of /metrics on --prometheus-port",
        pieces=once(_get("/metrics") * 10),
        connections=50,
        every=1,
        answers=math.inf,
        bytes_per_second=1000,
        is_on_monitor=True,
        expected=frozenset({"200"}),
    ),
    Attack(
        name="requests of web pages",
        pieces=_in_turn(_OF_WEB_PAGES),
        connections=2,
        every=0.02,
        expected=frozenset({"403"}),
    ),
    Attack(
        name="heads of unclear meaning",
        pieces=_in_turn(_UNCLEAR),
        connections=2,
        every=0.02,
        expected=frozenset({"400"}),
    ),
    Attack(
        name="ids for /decode that no model has",
        pieces=once(post("/decode", json.dumps({"model": MODEL, "ids": [[1], [10**20]]}).encode())),
        connections=2,
        every=0.02,
        expected=frozenset({"422"}),
    ),
)
