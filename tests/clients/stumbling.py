"""A proxy that says once that the server is overloaded, in the form of the route, and then passes requests on."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from server.dialects.answers import openai_error
from server.dialects.table import ROUTES
from server.requests.errors import Overloaded
from tests.server_e2e.running import PATIENCE

_SHAPES = {route.path: route.error_shape for route in ROUTES}
_HOPS = {"connection", "transfer-encoding", "content-length", "date", "server"}


class StumblingServer:
    """Refuses the first POST with 429 and Retry-After; `refused` counts them."""

    def __init__(self, port: int) -> None:
        self.refused = 0
        lock = threading.Lock()
        stumbling = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with lock:
                    is_first = not stumbling.refused
                    stumbling.refused += is_first
                if is_first:
                    shape = _SHAPES.get(self.path.split("?")[0], openai_error)
                    answer = shape(Overloaded("too much work is waiting", retry_after=1.0))
                    self._send(answer.status, [(n.decode(), v.decode()) for n, v in answer.headers], bytes(answer.body))
                else:
                    self._pass_on(body)

            def do_GET(self) -> None:
                self._pass_on(None)

            def _pass_on(self, body: bytes | None) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                kept = {name: value for name, value in self.headers.items() if name.lower() not in _HOPS | {"host"}}
                connection.request(self.command, self.path, body, kept)
                reply = connection.getresponse()
                self._send(reply.status, [h for h in reply.getheaders() if h[0].lower() not in _HOPS], reply.read())
                connection.close()

            def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
