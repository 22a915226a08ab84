"""A server whose answers are prepared, so that a client is what is measured.

    python -m benchmarks.client.stub [bytes base64 float]

Every request gets the same 128 rows of 1,024 numbers, in the form it asks for; forms that are not named are refused, as
servers without them do. A thread for each connection sends the prepared bytes in one call, without a copy in between.
Prints its port.
"""

import base64
import json
import socket
import sys
import threading

import numpy as np
from numpy.typing import NDArray

ROWS, WIDTH = 128, 1024


def rows() -> NDArray[np.float32]:
    """float32 [ROWS, WIDTH], each of length 1."""
    found = np.random.default_rng(1).standard_normal((ROWS, WIDTH), np.float32)
    scaled: NDArray[np.float32] = found / np.linalg.norm(found, axis=1, keepdims=True)
    return scaled


def answers(forms: set[str]) -> dict[str, bytes]:
    """Whole answers by encoding_format."""
    table = rows()
    items: dict[str, list[str] | list[list[float]]] = {
        "base64": [base64.b64encode(row.tobytes()).decode() for row in table],
        "float": [[float(str(number)) for number in row] for row in table],  # 9 digits, as servers write them
    }
    raw = f"x-embedline-shape: {ROWS},{WIDTH}\r\nx-embedline-dtype: float32\r\nx-embedline-prompt-tokens: 1024\r\n"
    found = {"bytes": _answer("200 OK", "application/octet-stream", table.tobytes(), raw)}
    for form, values in items.items():
        data = [{"object": "embedding", "index": at, "embedding": value} for at, value in enumerate(values)]
        usage = {"prompt_tokens": 1024, "total_tokens": 1024}
        body = {"object": "list", "data": data, "model": "m", "usage": usage}
        found[form] = _answer("200 OK", "application/json", json.dumps(body, separators=(",", ":")).encode())
    refusal = _answer("422 Unprocessable Entity", "application/json", b'{"error":"unknown encoding_format"}')
    return {form: answer if form in forms else refusal for form, answer in found.items()}


def _answer(status: str, kind: str, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def serve(connection: socket.socket, prepared: dict[str, bytes]) -> None:
    """All requests of a connection, one after the other."""
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        try:
            while True:
                while (end := received.find(b"\r\n\r\n")) < 0:
                    received += _more(connection)
                whole = end + 4 + _length(received[:end].lower())
                while len(received) < whole:
                    received += _more(connection)
                request, received = received[:whole], received[whole:]
                connection.sendall(prepared[_form(request)])
        except (ConnectionError, EOFError):
            pass


def _more(connection: socket.socket) -> bytes:
    if data := connection.recv(1 << 16):
        return data
    raise EOFError


def _length(head: bytes) -> int:
    _, found, rest = head.partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


def _form(request: bytes) -> str:
    if b'"bytes"' in request:
        return "bytes"
    return "base64" if b'"base64"' in request else "float"


def main() -> None:
    prepared = answers(set(sys.argv[1:]) or {"bytes", "base64", "float"})
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, prepared), daemon=True).start()


if __name__ == "__main__":
    main()
