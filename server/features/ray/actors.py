"""The programs that run in Ray's processes: a replica of Ray Serve, a worker of a backfill, and the server that each of
them has.

In Serve, a replica behind HAProxy answers HTTP itself, on a port that the controller gives it. Here a whole server
accepts on that port in place of Serve's uvicorn: a request goes from HAProxy to it, and no Python of Ray's is between.
For that one function of Serve is replaced, so the version of Ray is held. This module goes to Ray's processes by value,
so it imports nothing of ours at its top.
"""

import asyncio
import contextlib
import io
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.features.backfill.job import Job
    from server.features.backfill.servers import Servers


_ASK_SECONDS = 5.0
_KEPT_LINES = 20  # of its log, for the error of a start that fails
_MAX_PAGE = 1 << 22
# It gets the socket as systemd passes one. The kernel stops it if the replica is killed: it would keep the GPU.
_RUN = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
os.getppid() == int(sys.argv[1]) or sys.exit("the replica has ended")
os.dup2(int(sys.argv[2]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.executable, [sys.executable, "-P", "-m", "embedline", "serve", *sys.argv[3:]])
"""


class StartFailed(Exception):
    """The server was not ready in time; the end of its log says why."""


class Child:
    """A server as a child process that accepts on the port of its parent, and ends with it. Start it once, stop it
    once. It also listens on the Unix socket `socket`."""

    def __init__(self, config: str, arguments: Sequence[str]) -> None:
        """`config` is the text of its file; `arguments` outrank it."""
        self._folder = tempfile.TemporaryDirectory(prefix="embedline-")  # only this user can open it
        folder = Path(self._folder.name)
        (folder / "config.toml").write_text(config)
        self.socket = str(folder / "http.sock")
        self._arguments = ["--config", str(folder / "config.toml"), "--uds", self.socket, *arguments]
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._has_been_ready = False
        self._is_stopping = False

    async def start(self, listener: socket.socket, seconds: float) -> None:
        """Returns when it is ready, and accepts on `listener`, which is closed here. Raises StartFailed."""
        # The thread that starts it stays, as the kernel takes that thread's end for the parent's.
        thread = threading.Thread(target=self._run, args=(listener,), name="embedline server", daemon=True)
        thread.start()
        deadline = time.monotonic() + seconds
        while not await self.is_ready():
            if not thread.is_alive() or time.monotonic() > deadline:
                what = f"was not ready after {seconds:g} s" if thread.is_alive() else "ended at its start"
                await asyncio.to_thread(self.stop, 0)
                raise StartFailed(f"the server {what}: {' | '.join(self._lines)}")
            await asyncio.sleep(0.1)
        self._has_been_ready = True

    async def is_ready(self) -> bool:
        """Whether /readyz answers 200."""
        with contextlib.suppress(OSError):
            return (await self.get("/readyz")).startswith(b"HTTP/1.1 200")
        return False

    async def get(self, path: str) -> bytes:
        """The head and body of a page. Raises OSError."""
        async with asyncio.timeout(_ASK_SECONDS):
            reader, writer = await asyncio.open_unix_connection(self.socket)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                pieces = []
                while piece := await reader.read(_MAX_PAGE):
                    pieces.append(piece)
                return b"".join(pieces)
            finally:
                writer.close()

    def stop(self, seconds: float) -> None:
        """Let it finish its open requests, for so long at most. May be called again."""
        self._is_stopping = True
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def _run(self, listener: socket.socket) -> None:
        fd = listener.fileno()
        command = [sys.executable, "-P", "-c", _RUN, str(os.getpid()), str(fd), *self._arguments]
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace", pass_fds=(fd,)
        )
        listener.close()
        for line in self._process.stderr or ():
            sys.stderr.write(line)
            self._lines.append(line.rstrip())
        self._process.wait()
        if self._has_been_ready and not self._is_stopping:
            os._exit(1)  # Serve starts another replica


PROBLEM = "problem"  # the key of an answer that says why there is no other
_QUIET = ("--log-level", "warning", "--request-log", "off", "--frontends", "1")
_STARTS = 3  # tries
_CHILD_SECONDS = 10.0


class Worker:
    """A Ray actor. Its answers are plain values, as neither side need have the other's classes."""

    def __init__(
        self, config: str, arguments: Sequence[str], options: Mapping[str, Any], folder: str, start_seconds: float
    ) -> None:
        """`options`: of backfill.job, with this worker's number. `folder`: where the command was started."""
        import embedline

        package = Path(embedline.__file__).parent
        sys.path.insert(0, str(package / "_app" if (package / "_app").is_dir() else package.parent))  # as the launcher
        os.chdir(folder)
        self._config, self._arguments, self._start_seconds = config, (*arguments, *_QUIET), start_seconds
        self._child: Child | None = None  # that is ready
        self._options = options
        self._job: Job | None = None

    def start(self) -> dict[str, Any]:
        """The model, once the server is ready."""
        from server.features.backfill.errors import BackfillError

        try:
            with self._servers() as servers:
                served = servers.described()
        except (StartFailed, BackfillError) as error:
            return {PROBLEM: str(error)}
        return {"model": dict(served.model), "dimensions": served.dimensions}

    def compute(self, shards: Sequence[int]) -> dict[str, Any]:
        """Write these shards of the job that OUT has; how many rows and tokens that were."""
        from embedline.client.preference import CancellationToken
        from server.features.backfill.errors import BackfillError
        from server.features.backfill.job import Job, Options
        from server.features.backfill.work import Progress

        progress = Progress(0, 0, stream=io.StringIO())
        try:
            with self._servers() as servers:
                self._job = self._job or Job(Options(**self._options))
                plan = self._job.begin(servers.described())
                self._job.compute(plan, shards, servers, progress, CancellationToken())
        except (StartFailed, BackfillError) as error:
            return {PROBLEM: str(error)}
        return dict(progress.figures())

    def stop(self) -> None:
        """Let go of OUT, and end the server."""
        if self._job is not None:
            self._job.close()
        if self._child is not None:
            self._child.stop(_CHILD_SECONDS)

    def _started(self) -> Child:
        """The started server. Raises StartFailed. A GPU may still be taken by a server that has just ended."""
        deadline = time.monotonic() + self._start_seconds
        for num_left in reversed(range(_STARTS)):
            child = Child(self._config, self._arguments)
            try:
                # Nobody asks there: the Unix socket is this user's alone.
                asyncio.run(child.start(socket.create_server(("127.0.0.1", 0)), deadline - time.monotonic()))
                return child
            except StartFailed as error:
                if not num_left or time.monotonic() > deadline:
                    raise StartFailed(f"a worker did not start in {_STARTS - num_left} tries: {error}") from None
        raise AssertionError("the last try returns or raises")

    def _servers(self) -> "Servers":
        """Its server. Raises StartFailed. Ray starts a worker that ended again, with what it was told last."""
        from embedline.client.preference import CancellationToken
        from server.features.backfill.servers import Servers

        self._child = self._child or self._started()
        options = self._options
        url = f"unix://{self._child.socket}"
        return Servers([url], None, model=options["model"], ask=options["ask"], token=CancellationToken())


_Message = Mapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
# Of one connection alone.
_NOT_FORWARDED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"expect", b"upgrade", b"te"})
_OF_BODIES = frozenset({b"content-length", b"transfer-encoding"})  # a request with a body has one of them
_OF_AIOHTTP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # which it would add
TOKENS = "queued_tokens"
_GAUGE = b"embedline_queue_tokens{"
_END_SECONDS = 10.0  # that a server takes to end, beside its open requests


class Forward:
    """An ASGI application that sends each request to a replica's Unix socket and gives back what the server answers.

    For the few requests that come through Serve's own proxy, which holds them while there is no replica.
    """

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def __call__(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        """One request, or Serve's words at start and end. Raises aiohttp's errors where the server ends meanwhile."""
        if scope["type"] == "lifespan":
            while (kind := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{kind}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        import aiohttp
        import yarl

        has_body = any(name.lower() in _OF_BODIES for name, _ in scope["headers"])
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in _kept(scope["headers"])]
        connector = aiohttp.UnixConnector(self._socket)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=_OF_AIOHTTP, timeout=aiohttp.ClientTimeout()
        ) as session:
            asked = session.request(
                scope["method"],
                yarl.URL(f"http://localhost{target.decode('ascii')}", encoded=True),  # as it came
                headers=headers,
                data=_body(receive) if has_body else None,
                allow_redirects=False,
            )
            async with asked as answer:
                kept = [(name.lower(), value) for name, value in _kept(answer.raw_headers)]
                await send({"type": "http.response.start", "status": answer.status, "headers": kept})
                async for piece in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})


def _kept(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _NOT_FORWARDED]


async def _body(receive: _Receive) -> AsyncIterator[bytes]:
    """The pieces of a body. Raises ConnectionError once the client is gone."""
    while (message := await receive())["type"] == "http.request":
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
    raise ConnectionError("the client is gone")


class Replica:
    """Made and used by Ray Serve, under the names that it knows."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: str, arguments: Sequence[str], start_seconds: float, shutdown_seconds: float
    ) -> None:
        """Raises RuntimeError where Serve's Python proxy is in front."""
        from ray.serve._private import replica

        if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
            raise RuntimeError(
                "this cluster's Serve was started without HAProxy: end it (serve shutdown), and try again"
            )
        self._start_seconds = start_seconds
        self._end_seconds = shutdown_seconds + _END_SECONDS
        self._child = Child(config, arguments)
        replica.start_asgi_http_server = self._listen  # what Serve calls next

    async def _listen(self, app: object, options: Any, **_: object) -> tuple[asyncio.Task[None], "_Listening"]:
        """Listens in place of Serve's own method, which raises RuntimeError of an OSError where the port is taken."""
        listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((options.host, options.port))
            listener.listen(4096)
        except OSError as error:
            listener.close()
            raise RuntimeError(f"port {options.port} is taken") from error
        await self._child.start(listener, self._start_seconds)
        listening = _Listening()
        return asyncio.create_task(self._until_exit(listening)), listening

    async def _until_exit(self, listening: "_Listening") -> None:
        await listening.ended.wait()
        await asyncio.to_thread(self._child.stop, self._end_seconds)

    def __serve_build_asgi_app__(self) -> Forward:
        return Forward(self._child.socket)

    async def check_health(self) -> None:
        """Serve replaces a replica that raises three times in a row."""
        if not await self._child.is_ready():
            raise RuntimeError("the server is not ready")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tokens that wait or are computed, of all models and classes."""
        lines = (await self._child.get("/metrics")).splitlines()
        return {TOKENS: sum(float(line.rpartition(b" ")[2]) for line in lines if line.startswith(_GAUGE))}

    async def __del__(self) -> None:
        await asyncio.to_thread(self._child.stop, self._end_seconds)


class _Listening:
    """Stands for uvicorn's server. Serve sets `should_exit` once the proxies know that the replica ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    @property
    def should_exit(self) -> bool:
        return self.ended.is_set()

    @should_exit.setter
    def should_exit(self, _: bool) -> None:
        self.ended.set()


class QueuedTokens:
    """The autoscaling policy: as many replicas as keep to `target_tokens` each."""

    def __init__(self, target_tokens: int) -> None:
        self._target = target_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas that there should be; Serve applies the delays and bounds."""
        series = (context.raw_metrics or {}).get(TOKENS, {})
        newest = [points[-1].value for points in series.values() if points]
        if not newest:
            return context.target_num_replicas, {}
        least = 1 if context.total_num_requests > 0 else 0  # those that wait for a first replica have no tokens yet
        return max(least, math.ceil(sum(newest) / self._target)), {}
