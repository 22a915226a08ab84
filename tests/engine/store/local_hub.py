"""A small hub for tests: one model, as the real hub's answers have it (revisions, listings, redirects to another host,
etags, gates, ranges), with ways to go wrong. HF_ENDPOINT points to it."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

MODEL = "org/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = {"main": COMMIT, "v1": "89abcdef0123456789abcdef0123456789abcdef"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came."""

    method: str
    host: str  # without the port
    path: str  # without the query
    token: str
    range: str


@dataclass
class LocalHub:
    """What is served, what was asked, and what shall go wrong."""

    folder: Path  # the model's files
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    needs_token: str | None = None  # the model is gated, and this opens it
    num_cuts: int = 0  # so many more answers with weights end early,
    cut_after: int = 0  # after so many bytes
    weights_status: int = 200  # of the host that has the weights
    silent: bool = False  # take connections and never answer
    stalls: bool = False  # begin to send weights, and go no further
    stalled: threading.Event = field(default_factory=threading.Event)  # so it is now
    released: threading.Event = field(default_factory=threading.Event)

    def paths(self, method: str = "GET") -> list[str]:
        return [asked.path for asked in self.asked if asked.method == method]

    def files(self) -> list[str]:
        return sorted(str(file.relative_to(self.folder)) for file in self.folder.rglob("*") if file.is_file())

    def listing(self) -> list[dict[str, object]]:
        """The answer of /api/models/…/tree."""
        return [self._entry(name) for name in self.files()]

    def etag(self, name: str) -> str:
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def _entry(self, name: str) -> dict[str, object]:
        size = (self.folder / name).stat().st_size
        entry: dict[str, object] = {"type": "file", "path": name, "size": size, "oid": self.etag(name)[:40]}
        if is_large(name):
            entry["lfs"] = {"oid": self.etag(name), "size": size, "pointerSize": 130}
        return entry


def is_large(name: str) -> bool:
    """Whether the hub keeps this file elsewhere."""
    return name.endswith((".safetensors", ".bin"))


@contextmanager
def serving_hub(folder: Path) -> Iterator[LocalHub]:
    """A hub that serves this folder as MODEL, in a thread."""
    hub = LocalHub(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        host = self.headers.get("Host", "").partition(":")[0]
        self.hub.asked.append(Asked(self.command, host, path, token, self.headers.get("Range", "")))
        if self.hub.silent:
            self.hub.released.wait()
            self.close_connection = True
        elif path.startswith("/elsewhere/"):
            self._weights(path.removeprefix("/elsewhere/"))
        elif not self._refused(path, token):
            self._hub(path)

    do_HEAD = do_GET

    def _refused(self, path: str, token: str) -> bool:
        if MODEL not in path:
            self._answer(404 if token else 401, {"X-Error-Code": "RepoNotFound"})
        elif self.hub.needs_token and not token:
            self._answer(401, {"X-Error-Code": "GatedRepo"})
        elif self.hub.needs_token and token != self.hub.needs_token:
            self._answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        else:
            return False
        return True

    def _hub(self, path: str) -> None:
        rest = path.removeprefix("/api/models").removeprefix(f"/{MODEL}/")
        kind, _, rest = rest.partition("/")
        revision, _, name = rest.partition("/")
        commit = REVISIONS.get(revision, revision)
        if commit not in REVISIONS.values():
            self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            self._answer(200, {}, json.dumps({"id": MODEL, "sha": commit}).encode())
        elif kind == "tree":
            self._answer(200, {}, json.dumps(self.hub.listing()).encode())
        else:
            self._resolve(commit, name)

    def _resolve(self, commit: str, name: str) -> None:
        named = {"X-Repo-Commit": commit}
        if not (self.hub.folder / name).is_file():
            self._answer(404, {**named, "X-Error-Code": "EntryNotFound"})
            return
        content, etag = (self.hub.folder / name).read_bytes(), f'"{self.hub.etag(name)}"'
        if is_large(name):
            elsewhere = f"{self.hub.url.replace('127.0.0.1', 'localhost')}/elsewhere/{name}"
            linked = {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content)), "Location": elsewhere}
            self._answer(302, {**named, **linked, "ETag": '"of the pointer"'})
        else:
            self._answer(200, {**named, "ETag": etag}, content)

    def _weights(self, name: str) -> None:
        content = (self.hub.folder / name).read_bytes()
        if self.hub.weights_status != 200:
            self._answer(self.hub.weights_status, {})
            return
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if self.hub.stalls and self.command == "GET":
            self._answer(200, {}, content, send=1)
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.released.wait()
            return
        span = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if first else {}
        cut = self.hub.num_cuts > 0
        self.hub.num_cuts -= cut
        self._answer(206 if first else 200, span, content[first:], send=self.hub.cut_after if cut else None)

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"", *, send: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:send])
        self.close_connection = send is not None

    def log_message(self, format: str, *args: object) -> None:
        pass
