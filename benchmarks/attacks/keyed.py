"""Attacks by one API key on the others, on a server with keys and jobs: what is attacked beside the steady clients."""

import contextlib
import http.client
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.attacks.attack import PIECE, Attack, once, post
from benchmarks.measuring.servers import ServerFailed

GOOD, ATTACKER, LIMITED = "good-key", "attacker-key", "limited-key"
MAX_CONCURRENT, QUOTA_BYTES = 256, 2 << 30
_NUM_BOUNDED = 64  # keys that send once: each request takes two fifths of the ceiling
_CEILING = 1000  # tokens a minute
_PATIENCE = 20.0  # seconds for what another key asks for
_LOOK_SECONDS = 0.02
_AS = "authorization: Bearer "
_FORM = b'--c\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' + (
    b'--c\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
)
_OF_A_FORM = "content-type: multipart/form-data; boundary=c"
_CONTENT_BYTES = 16 << 20
_RESULT_ITEMS = 1000
_bounded = itertools.count()


def flags(folder: Path) -> tuple[str, ...]:
    """Of the server."""
    keys = folder / "keys"
    limited = [f"limited:{LIMITED}", *(f"bounded-{number}:bounded-{number}" for number in range(_NUM_BOUNDED))]
    lines = [f"good:{GOOD}", f"attacker:{ATTACKER}", *(f"{key} tokens-per-minute={_CEILING}" for key in limited)]
    keys.write_text("\n".join(lines))
    jobs = ("--jobs", str(folder / "jobs"), "--jobs-quota", str(QUOTA_BYTES))
    return ("--api-key-file", str(keys), "--max-concurrent-requests", str(MAX_CONCURRENT), *jobs)


def ask(port: int, method: str, path: str, body: bytes = b"", *, key: str, content: str = "application/json") -> bytes:
    """The answer's body. Raises OSError, HTTPException, ServerFailed for a status from 300 on."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)) as connection:
        connection.request(method, path, body, {"authorization": f"Bearer {key}", "content-type": content})
        answer = connection.getresponse()
        received = answer.read()
    if answer.status >= 300:
        raise ServerFailed(f"HTTP {answer.status}")
    return received


def _async_request(port: int, *, key: str, num_texts: int = 1) -> str:
    """Its id, once it has succeeded."""
    texts = [f"text {number}" for number in range(num_texts)]
    body = {"route": "/v1/embeddings", "model_input": {"model": "m", "input": texts}}
    accepted = json.loads(ask(port, "POST", "/async_predict", json.dumps(body).encode(), key=key))
    path, until = f"/async_request/{accepted['request_id']}", time.monotonic() + _PATIENCE
    while (status := json.loads(ask(port, "GET", path, key=key))["status"]) != "SUCCEEDED":
        if status not in ("QUEUED", "IN_PROGRESS") or time.monotonic() > until:
            raise ServerFailed(f"an async request is {status}")
        time.sleep(_LOOK_SECONDS)
    return str(accepted["request_id"])


def _upload(port: int, *, key: str, content: bytes = b"{}\n") -> str:
    body = _FORM + content + b"\r\n--c--\r\n"
    kind = _OF_A_FORM.partition(": ")[2]
    return str(json.loads(ask(port, "POST", "/v1/files", body, key=key, content=kind))["id"])


def another_uploads(port: int) -> None:
    """Another key uploads a file and removes it."""
    ask(port, "DELETE", f"/v1/files/{_upload(port, key=GOOD)}", key=GOOD)


def another_has_a_job(port: int) -> None:
    """An async request of another key ends."""
    _async_request(port, key=GOOD)


def another_sends_much(port: int) -> None:
    """Another key sends two fifths of what it may send in a minute."""
    body = {"model": "m", "input": "the ferry leaves at seven " * 80 + "every day"}
    ask(port, "POST", "/v1/embeddings", json.dumps(body).encode(), key=f"bounded-{next(_bounded) % _NUM_BOUNDED}")


def _with_a_file(port: int) -> str:
    return _upload(port, key=ATTACKER, content=b"x" * _CONTENT_BYTES)


def _with_a_result(port: int) -> str:
    return _async_request(port, key=ATTACKER, num_texts=_RESULT_ITEMS)


def _head(method: str, path: str, *headers: str, key: str = ATTACKER) -> bytes:
    named = ["host: localhost", _AS + key, *headers]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *named]).encode() + b"\r\n\r\n"


def _lines(line: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield _head("POST", "/v1/embeddings", "content-type: application/x-ndjson", "transfer-encoding: chunked")
        content = line * (PIECE // 4 // len(line))
        yield from itertools.repeat(b"%x\r\n%b\r\n" % (len(content), content))

    return pieces


def _stalled_upload(announced: int) -> Callable[[], Iterator[bytes]]:
    head = _head("POST", "/v1/files", _OF_A_FORM, f"content-length: {announced}")
    return once(head + _FORM + b"{}\n" * 100)


def _async_body() -> bytes:
    body = {"route": "/v1/embeddings", "model_input": {"model": "m", "input": ["a long text " * 40]}}
    return post("/async_predict", json.dumps(body).encode(), _AS + LIMITED)


KEYED_ATTACKS = (
    Attack(
        name="lines of two bytes",
        pieces=_lines(b"1\n"),
        pause=0.8,
        connections=50,
        every=1,
        answers=100_000,
        expected=frozenset({"200"}),
    ),
    Attack(
        name="bodies of blank lines",
        pieces=_lines(b"\n"),
        pause=0.8,
        connections=150,
        every=1,
        answers=100_000,
    ),
    Attack(
        name="300 silent connections to /v1/files",
        pieces=once(_head("POST", "/v1/files", _OF_A_FORM, "content-length: 1000")),
        connections=MAX_CONCURRENT + 44,
        every=1,
        beside=another_uploads,
    ),
    Attack(
        name="300 silent connections to /v1/embeddings",
        pieces=once(_head("POST", "/v1/embeddings", "content-length: 1000")),
        connections=MAX_CONCURRENT + 44,
        every=1,
    ),
    Attack(
        name="64 uploads that stop and have announced the whole quota",
        pieces=_stalled_upload(QUOTA_BYTES),
        connections=64,
        every=1,
        beside=another_uploads,
    ),
    Attack(
        name="jobs of a key that is over its ceiling",
        pieces=once(_async_body()),
        connections=2,
        every=0.05,
        beside=another_has_a_job,
        expected=frozenset({"202"}),
    ),
    Attack(
        name="texts of one letter",
        pieces=once(post("/v1/embeddings", b'{"model": "m", "input": "a"}', _AS + ATTACKER)),
        connections=2,
        every=0.05,
        beside=another_sends_much,
        expected=frozenset({"200"}),
    ),
    Attack(
        name="60 results of jobs that nobody reads",
        prepare=_with_a_result,
        pieces=once(_head("GET", "/async_request/PREPARED/result")),
        connections=60,
        every=1,
        bytes_per_second=0,
    ),
    Attack(
        name="800 contents of a file that nobody reads",
        prepare=_with_a_file,
        pieces=once(_head("GET", "/v1/files/PREPARED/content")),
        connections=800,
        every=1,
        bytes_per_second=0,
    ),
)
