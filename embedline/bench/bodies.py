"""Makes whole HTTP requests from texts before the clock starts, and reads from an answer how many tokens it counted."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from embedline.bench.http_answers import Answer, header
from embedline.bench.options import Options, Target

# where servers say how many tokens they read: Embedline with raw bytes, and the native routes of TEI
_TOKEN_HEADERS = (b"x-embedline-prompt-tokens", b"x-compute-tokens")
_USAGE = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_USAGE_WINDOW = 1024  # bytes at either end of a body in which its usage stands


@dataclass(frozen=True, slots=True)
class Request:
    """A whole HTTP/1.1 request."""

    payload: bytes
    num_texts: int


def prepare(options: Options, target: Target, texts: Sequence[str]) -> list[Request]:
    """One request for each `batch_size` texts; the last one is filled up from the first texts."""
    groups = range(0, len(texts), options.batch_size)
    batches = [[texts[(first + n) % len(texts)] for n in range(options.batch_size)] for first in groups]
    headers = _headers(options)
    path = target.prefix + options.route
    return [Request(post(target, path, _body(options, batch), headers=headers), len(batch)) for batch in batches]


def post(target: Target, path: str, body: bytes, *, headers: Sequence[str] = ()) -> bytes:
    """The bytes of a POST request with a JSON body."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {target.host}:{target.port}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def num_tokens(answer: Answer) -> int | None:
    """As the server counts them; None where it doesn't say."""
    for name in _TOKEN_HEADERS:
        if value := header(answer.head, name):
            return int(value) if value.isdigit() else None
    found = _USAGE.search(answer.body[-_USAGE_WINDOW:]) or _USAGE.search(answer.body[:_USAGE_WINDOW])
    return int(found[1]) if found else None


def _headers(options: Options) -> list[str]:
    headers = []
    if options.api_key is not None:
        headers.append(f"authorization: Bearer {options.api_key}")
    if options.request_class is not None:
        headers.append(f"x-embedline-class: {options.request_class}")
    if options.encoding == "bytes":
        headers.append("accept: application/octet-stream")
    return headers


def _body(options: Options, texts: list[str]) -> bytes:
    """A single text goes as a text and not as a list, as most clients send it."""
    asked = texts[0] if options.batch_size == 1 else texts
    if options.route == "/embed":
        return json.dumps({"inputs": asked}).encode()
    return json.dumps({"input": asked, "model": options.model, "encoding_format": options.encoding}).encode()
