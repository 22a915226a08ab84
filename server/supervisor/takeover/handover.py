"""The running server's side: waits for a successor, hands it the listening sockets, and drains when it is told to."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.http.acceptor import Acceptor
from server.supervisor.listening.listeners import Listeners
from server.supervisor.takeover import messages
from server.supervisor.takeover.memory import memory_of
from server.supervisor.takeover.messages import Listener, Offer, Refused
from wire.descriptors import DescriptorConnection
from wire.frames import ProtocolError

_BACKLOG = 8
_BUSY = "another server is taking over already"
_LOADING = "it is still loading; start again once it is ready"
_STOPPING = "it is stopping; start again once it has ended"

logger = logging.getLogger("embedline.supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """What is handed over, and what the successor has to know."""

    http: Listeners
    monitor: Listeners | None
    devices: Sequence[str]  # of all engines
    pids: Callable[[], Sequence[int]]  # of all processes
    is_loaded: Callable[[], bool]  # whether it was ready at any time


class Handover:
    """One successor at a time. `taken` gets its process id once it is ready."""

    def __init__(self, path: Path, server: RunningServer, *, taken: Callable[[int], None]) -> None:
        self._path = path
        self._server = server
        self._taken = taken
        self._was_kept_elsewhere = server.http.kept_elsewhere
        self._acceptor: Acceptor | None = None
        self._inode = 0  # of the socket's file
        self._connections: set[DescriptorConnection] = set()
        self._successor: DescriptorConnection | None = None
        self._offering: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_taken = False
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Begin to wait. Takes the place of the server that was there before, if there was one. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unnamed = self._path.with_suffix(f".{os.getpid()}")
        unnamed.unlink(missing_ok=True)
        listener.bind(str(unnamed))
        listener.listen(_BACKLOG)
        self._inode = unnamed.stat().st_ino
        unnamed.rename(self._path)  # at once: whoever connects reaches the one or the other
        self._acceptor = Acceptor(listener, self._accepted)

    def stopping(self) -> None:
        """The server drains; no successor may begin now. One that has begun is not disturbed."""
        self._is_stopping = True

    def close(self) -> None:
        """Close all. A successor takes that as: the server is gone."""
        if self._acceptor is not None:
            with contextlib.suppress(OSError):  # it is gone, or another server of this user waits in the folder too
                if self._path.stat().st_ino == self._inode:  # else it is the successor's by now
                    self._path.unlink()
                    self._path.parent.rmdir()
            self._acceptor.close()
            self._acceptor = None
        for connection in list(self._connections):
            self._forget(connection)

    def _accepted(self, channel: socket.socket) -> None:
        try:
            connection = DescriptorConnection(channel)
        except OSError:  # it has left
            channel.close()
            return
        if connection.peer.uid != os.getuid():
            logger.warning("user %d may not take over", connection.peer.uid)
            connection.close()
            return
        self._connections.add(connection)
        self._loop.add_reader(connection, self._read, connection)

    def _read(self, connection: DescriptorConnection) -> None:
        try:
            for kind, _ in connection.receive():
                if kind == messages.TAKE:
                    self._asked(connection)
                elif kind == messages.DRAIN and connection is self._successor:
                    self._is_taken = True
                    self._taken(connection.peer.pid)
        except (EOFError, OSError):
            self._lost(connection)
        except ProtocolError as error:
            logger.warning("a server that wanted to take over was refused: %s", error)
            self._lost(connection)

    def _asked(self, connection: DescriptorConnection) -> None:
        if reason := self._why_not():
            connection.send(messages.REFUSED, messages.encode(Refused(reason=reason)))
            return
        self._successor = connection
        self._server.http.kept_elsewhere = True
        logger.info("process %d takes over; until it is ready this server goes on", connection.peer.pid)
        self._offering = self._loop.create_task(self._offer(connection))

    def _why_not(self) -> str | None:
        """Why a successor gets nothing."""
        if self._is_stopping:
            return _STOPPING
        if self._successor is not None:
            return _BUSY
        return None if self._server.is_loaded() else _LOADING

    async def _offer(self, connection: DescriptorConnection) -> None:
        server = self._server
        num_bytes = await asyncio.to_thread(memory_of, server.pids())  # of gigabytes it takes a while
        offer = Offer(num_bytes=num_bytes, devices=list(server.devices), kept_elsewhere=self._was_kept_elsewhere)
        try:
            for listeners in filter(None, (server.http, server.monitor)):
                what = messages.encode(Listener(is_monitor=listeners is server.monitor))
                for listener in listeners.sockets:
                    connection.send(messages.LISTENER, what, descriptors=[listener.fileno()])
            connection.send(messages.OFFER, messages.encode(offer))
        except OSError:
            self._lost(connection)

    def _lost(self, connection: DescriptorConnection) -> None:
        if connection is self._successor and not self._is_taken:
            self._successor = None
            self._server.http.kept_elsewhere = self._was_kept_elsewhere
            logger.warning("the server that was to take over ended before it was ready; this one goes on")
        self._forget(connection)

    def _forget(self, connection: DescriptorConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._loop.remove_reader(connection)
            connection.close()
