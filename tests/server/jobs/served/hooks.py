"""A receiver of webhooks on this machine, for whole servers."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.server_e2e.running import PATIENCE


@dataclass(frozen=True, slots=True)
class Received:
    """One POST; names of headers in lower case."""

    headers: dict[str, str]
    body: bytes


class Receiver(ThreadingHTTPServer):
    """Answers 200 to everything, but not before `may_answer`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: queue.Queue[Received] = queue.Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"

    def next(self) -> Received:
        return self.received.get(timeout=PATIENCE)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(size := int(self.headers["content-length"]))
        if len(body) < size:  # the sender was killed meanwhile
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.put(Received(headers, body))
        self.server.may_answer.wait(PATIENCE)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.may_answer.set()
            receiver.shutdown()
            thread.join(PATIENCE)
