"""Requests that a server refuses, for each of its routes, and what it answers: bodies, statuses, headers.

The routes, their fields and an example of each come from the server's own OpenAPI document, which moves with no file.
"""

import gzip
import http.client
import json
import re
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.server_e2e.running import PATIENCE, Reply, Server, send

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
# a value of each type, and those at the borders of what fields take
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**12, "", "nonsense", [], [None], [1], ["a"], [[]], [[-1]], {}, {"nonsense": 1}),
)
# fields of other vendors, which a route that doesn't know them refuses or passes over
_FOREIGN = (
    *("autoTruncate", "candidate_labels", "chat_template", "chat_template_kwargs", "classifier_id"),
    *("embed_dtype", "embedding_type", "embedding_types", "encoding_format", "endianness"),
    *("function_to_apply", "image", "images", "instruct", "instruction", "labels", "late_chunking"),
    *("late_chunking_params", "long_text", "lora_path", "max_chunks_per_doc", "max_tokens"),
    *("max_tokens_per_doc", "max_tokens_per_query", "messages", "metadata", "modality", "nonsense"),
    *("normalize", "normalized", "on_error", "outputDimensionality", "output_dimension", "output_dtype"),
    *("padding", "priority", "prompt", "prompt_name", "rank_fields", "raw_scores", "relevant_spans"),
    *("return_documents", "return_input", "return_multivector", "return_text", "rewrite_query", "task"),
    *("task_type", "top_k", "top_n", "truncate", "truncate_prompt_tokens", "truncation"),
    *("truncation_direction", "truncation_side", "truncation_strategy", "use_activation", "user"),
)
_FOREIGN_VALUES: tuple[Any, ...] = (None, True, "nonsense")
_NO_JSON: dict[str, bytes] = {
    "empty": b"",
    "spaces": b"  \n",
    "no JSON": b"nonsense",
    "cut": b'{"input": "te',
    "two values": b"{}{}",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"text"',
    "an empty object": b"{}",
    "NaN": b'{"input": NaN, "inputs": NaN}',
    "no UTF-8": b'{"input": "\xff", "inputs": "\xff"}',
    "half a surrogate pair": b'{"input": "\\ud800", "inputs": "\\ud800"}',
    "a field twice": b'{"input": "a", "input": 5, "inputs": "a", "inputs": 5}',
    "deep": b'{"nonsense": ' + b"[" * 64 + b"]" * 64 + b"}",
    "wide": b'{"nonsense": [' + b"[]," * 100_000 + b"[]]}",
    "over the limit": b" " * 300_000,
}
HEADERS: dict[str, dict[str, str]] = {
    "content-type: none": {"content_type": ""},
    "content-type: text": {"content_type": "text/plain"},
    "content-type: bytes": {"content_type": "application/octet-stream"},
    "content-type: Latin-1": {"content_type": "application/json; charset=latin-1"},
    "content-type: a form": {"content_type": "multipart/form-data"},
    "content-type: lines": {"content_type": "application/x-ndjson"},
    "content-encoding: no gzip": {"content_encoding": "gzip"},
    "content-encoding: unknown": {"content_encoding": "nonsense"},
    "content-encoding: two": {"content_encoding": "gzip, gzip"},
    "accept: text": {"accept": "text/html"},
    "accept: bytes": {"accept": "application/octet-stream"},
    "accept: npy": {"accept": "application/x-npy"},
    "request-timeout-ms: 0": {"request_timeout_ms": "0"},
    "request-timeout-ms: nonsense": {"request_timeout_ms": "nonsense"},
    "request-timeout-ms: too large": {"x_request_timeout_ms": "99999999999"},
    "x-embedline-class: nonsense": {"x_embedline_class": "nonsense"},
    "a key": {"authorization": "Bearer nonsense"},
    "a foreign host": {"host": "elsewhere.example"},
    "a foreign page": {"origin": "https://elsewhere.example"},
    "expect: nonsense": {"expect": "nonsense"},
}
_UNKNOWN_PATHS = (
    *("/nonsense", "/v1/embedding", "/v1/embeddings/", "//embed", "/Embed", "/v1/models/nonsense", "/api/generate"),
    *("/v1/files/nonsense/content", "/async_request/nonsense/result", "/v1/batches/nonsense/cancel", "/%00", "/é%zz"),
)
# what is no HTTP, or HTTP beyond a limit
_RAW: dict[str, bytes] = {
    "no request": b"nonsense\r\n\r\n",
    "HTTP/3": b"GET /livez HTTP/3.0\r\nhost: localhost\r\n\r\n",
    "HTTP/1.0": b"GET /nonsense HTTP/1.0\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
    "a bad length": b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
    "two lengths": b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "a length and chunks": b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n"
    b"transfer-encoding: chunked\r\n\r\n{}",
    "a length over the limit": b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n\r\n",
    "a bad chunk": b"POST /embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nxx\r\n",
    "an unknown coding": b"POST /embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: nonsense\r\n\r\n",
    "a long header": b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
    "many headers": b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + b"x: a\r\n" * 1_000 + b"\r\n",
    "a long path": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "an upgrade": b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
}
# headers that differ each time, or only repeat what the body shows
_LEFT_OUT = frozenset({"date", "x-request-id", "content-length"})
_TIMES = ("-time", "-ms", "server-timing")  # ends of names of headers whose values differ each time
_IDS = re.compile(
    r"\b(?:[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{24,64}|(?:file|batch|embd|cmpl|req|[a-z]+)-[0-9a-f]{16,})\b"
)


class Asked(NamedTuple):
    """One request."""

    what: str  # is wrong with it
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


class Operation(NamedTuple):
    """One method of one path, as the OpenAPI document has it."""

    method: str
    path: str
    example: Any  # None = it takes no JSON
    fields: tuple[str, ...]  # of all forms of its body


def operations(document: dict[str, Any]) -> list[Operation]:
    found = []
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            fields = tuple(sorted(set(_properties(content.get("schema"), document))))
            found.append(Operation(method.upper(), path, content.get("example"), fields))
    return found


def _properties(schema: Any, document: dict[str, Any]) -> Iterator[str]:
    """Names of fields of an object, or of the objects that a body may be."""
    if not isinstance(schema, dict):
        return
    if reference := schema.get("$ref"):
        yield from _properties(document["components"]["schemas"][reference.rpartition("/")[2]], document)
    yield from schema.get("properties", {})
    for forms in ("anyOf", "oneOf", "allOf"):
        for form in schema.get(forms, []):
            yield from _properties(form, document)


def of_operation(operation: Operation) -> Iterator[Asked]:
    """What can be wrong with a request to it."""
    method, path = operation.method, re.sub(r"\{\w+\}", "nonsense", operation.path)
    yield Asked("as it is", method, path, as_json(operation.example))
    for what, headers in HEADERS.items():
        yield Asked(what, method, path, as_json(operation.example), headers)
    if method != "POST":
        return
    for what, body in _NO_JSON.items():
        yield Asked(what, method, path, body)
    for what, body in (("gzip of no JSON", b"nonsense"), ("a bomb", b" " * 3_000_000)):
        yield Asked(what, method, path, gzip.compress(body), {"content_encoding": "gzip"})
    if not isinstance(operation.example, dict):
        return
    for field in operation.example:
        yield Asked(f"without {field}", method, path, as_json({**operation.example, field: ...}))
    values = {field: VALUES for field in operation.fields}
    values |= {field: _FOREIGN_VALUES for field in _FOREIGN if field not in values}
    for field, each in values.items():
        for value in each:
            body = as_json({**operation.example, field: value})
            yield Asked(f"{field}: {json.dumps(value)}", method, path, body)
    for field, value in operation.example.items():
        if isinstance(value, str | list):
            many = [value] * 5_000 if isinstance(value, str) else value * 5_000
            yield Asked(f"{field}: many", method, path, as_json({**operation.example, field: many})[:190_000])


def of_paths(document: dict[str, Any]) -> Iterator[Asked]:
    """Every method on every path, and paths that are none."""
    for path in (*sorted(document["paths"]), *_UNKNOWN_PATHS):
        for method in METHODS:
            yield Asked("the method", method, re.sub(r"\{\w+\}", "nonsense", path.replace("é", "%C3%A9")))


def as_json(content: Any) -> bytes:
    """The body; a field that is ... is left out, and a request without an example has none."""
    if isinstance(content, dict):
        content = {field: value for field, value in content.items() if value is not ...}
    return b"" if content is None else json.dumps(content).encode()


class Asker:
    """One connection after the other to a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: http.client.HTTPConnection = server.connect()

    def answer(self, asked: Asked) -> str:
        """What the server answers, in lines that are the same each time."""
        headers = dict(asked.headers)
        try:
            reply = send(self._connection, asked.method, asked.path, asked.body or None, **headers)
        except (OSError, http.client.HTTPException) as error:
            self._renew()
            return f"{asked.method} {asked.path} {asked.what}\n  {type(error).__name__}\n"
        if reply.headers.get("connection") == "close":
            self._renew()
        return f"{asked.method} {asked.path} {asked.what}\n{as_text(reply)}"

    def close(self) -> None:
        self._connection.close()

    def _renew(self) -> None:
        self._connection.close()
        self._connection = self._server.connect()


def as_text(reply: Reply) -> str:
    """Status, headers and body; of an answer that is no error only the form of its body."""
    named = {name: "TIME" if name.endswith(_TIMES) else value for name, value in sorted(reply.headers.items())}
    headers = "".join(f"  {name}: {value}\n" for name, value in named.items() if name not in _LEFT_OUT)
    body = reply.body.decode(errors="backslashreplace")
    if reply.status < 300:
        body = form_of(reply)
    return f"  {reply.status}\n{headers}  {_IDS.sub('ID', body)}\n"


def form_of(reply: Reply) -> str:
    """Which fields an answer has, and their types."""
    if not reply.body or not reply.headers.get("content-type", "").startswith("application/json"):
        return f"{reply.headers.get('content-type')}"
    return json.dumps(_form(json.loads(reply.body)))


def _form(value: Any) -> Any:
    match value:
        case dict():
            return {field: _form(inside) for field, inside in value.items()}
        case [first, *_]:
            return [_form(first)]
        case int() | float() if not isinstance(value, bool):
            return "number"
    return type(value).__name__


def raw_answers(server: Server) -> Iterator[str]:
    """What comes for bytes that are no request."""
    for what, sent in _RAW.items():
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as answer:
                try:
                    text = answer.read().decode(errors="backslashreplace")
                except ConnectionError as error:
                    text = type(error).__name__
        lines = [line for line in text.splitlines() if line.partition(":")[0].lower() not in _LEFT_OUT]
        yield f"{what}\n" + "".join(f"  {_IDS.sub('ID', line)}\n" for line in lines)
