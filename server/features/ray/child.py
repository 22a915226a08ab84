"""The server of one replica: a child process that accepts on the replica's port. It and the replica end together.

This module goes to Ray's processes by value, so it imports nothing of ours.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

_POLL_SECONDS = 0.1
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
    """Start it once, stop it once. It also listens on the Unix socket `socket`."""

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
            await asyncio.sleep(_POLL_SECONDS)
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
