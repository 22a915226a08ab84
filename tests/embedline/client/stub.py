"""A scripted HTTP server of threads: each request is answered as the test's function says, right or wrong."""

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.server_e2e.running import PATIENCE

WIDTH = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """A request."""

    number: int  # from 0, in the order of arrival
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def texts(self) -> list[Any]:
        """Of a request for embeddings."""
        texts: list[Any] = self.json()["input"]
        return texts


RESET = object()  # the connection is reset; what was sent before may be lost
CLOSE = object()  # the connection ends
Step = bytes | threading.Event | object  # bytes are sent, events waited for
Script = Callable[[Seen], Sequence[Step]]


@dataclass(slots=True)
class Stub:
    """The running server."""

    script: Script
    tls: ssl.SSLContext | None = None
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    num_connections: int = 0
    most_in_flight: int = 0
    num_in_flight: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    open: set[socket.socket] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://localhost:{self.port}"

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Until a request or the end of a connection makes it so."""
        with self.changed:
            assert self.changed.wait_for(is_so, PATIENCE)

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            self._serve(self.tls.wrap_socket(connection, server_side=True) if self.tls else connection)
        with self.changed:
            self.open.discard(connection)
            self.changed.notify_all()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as received:
            while True:
                request = self._read(received)
                steps = self.script(request)
                for step in steps:
                    self._do(connection, step)
                with self.changed:
                    self.num_in_flight -= 1
                    self.changed.notify_all()

    def _read(self, received: Any) -> Seen:
        first = received.readline()
        if not first:
            raise EOFError
        method, path, _ = first.decode().split(" ")
        headers = {}
        while (line := received.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", "0"))
        body = received.read(length)
        if len(body) < length:
            raise EOFError
        with self.changed:
            request = Seen(len(self.seen), method, path, headers, body)
            self.seen.append(request)
            self.num_in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
            self.changed.notify_all()
        return request

    def _do(self, connection: socket.socket, step: Step) -> None:
        if isinstance(step, threading.Event):
            step.wait(PATIENCE)
        elif step is RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise OSError
        elif step is CLOSE:
            raise OSError
        else:
            assert isinstance(step, bytes)
            connection.sendall(step)


@contextlib.contextmanager
def stub(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    """A server on a free port; in the end its connections are closed and its threads waited for."""
    running = Stub(script, tls)
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running.port = listener.getsockname()[1]

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with running.changed:
                        running.num_connections += 1
                        running.open.add(connection)
                    threads.append(threading.Thread(target=running.serve, args=(connection,), daemon=True))
                    threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield running
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(PATIENCE)
            for connection in list(running.open):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(PATIENCE)


def http(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    """An answer of known length. Names of headers are written with underscores."""
    named = {"content_type": "application/json", "content_length": str(len(body)), **headers}
    lines = [f"HTTP/1.1 {status} Words", *(f"{name.replace('_', '-')}: {value}" for name, value in named.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def as_json(value: Any, status: int = 200, **headers: str) -> bytes:
    return http(status, json.dumps(value).encode(), **headers)


def row_of(item: Any) -> NDArray[np.float32]:
    """What a text's row is: float32 [WIDTH], another one for each text."""
    number = sum(item) if isinstance(item, list) else int("".join(filter(str.isdigit, item)) or "0") % 1_000_003
    return np.array([number, len(item), number / 7, -1.5], np.float32)


def rows_of(items: Sequence[Any]) -> NDArray[np.float32]:
    return np.stack([row_of(item) for item in items])


def raw(items: Sequence[Any], **headers: str) -> bytes:
    """Rows as our own server writes them."""
    rows = rows_of(items)
    own = {
        "content_type": "application/octet-stream",
        "x_embedline_shape": f"{len(rows)},{WIDTH}",
        "x_embedline_dtype": "float32",
        "x_embedline_prompt_tokens": str(3 * len(items)),
        "x_embedline_truncated_inputs": "1",
    }
    return http(200, rows.tobytes(), **{**own, **headers})


def texts(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]
