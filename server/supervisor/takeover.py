"""Lets a new server take over the listening sockets of the running one, and what the two say to each other.

They talk over a Unix socket that lives as long as both, in a folder of this user, named by address and port:

successor -> running server   TAKE, then DRAIN
running server -> successor   a LISTENER with a descriptor for each socket and an OFFER, or REFUSED

The end of the connection is a message too. Before DRAIN: the successor has died, and the running server goes on as if
nothing had been. After it: the running server is gone, and what it used is free. `Predecessor` is the running server
as its successor sees it; `Handover` is the running server's own side.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.machine.host import free_memory
from server.http.server import Acceptor
from server.settings.flag import SettingsError
from server.supervisor.listeners import Listeners
from server.supervisor.socket_folder import runtime_folder
from wire.dataclass_json import from_json, to_json
from wire.descriptors import DescriptorConnection
from wire.frames import Buffer, ProtocolError

TAKE = 0x0500
DRAIN = 0x0501
LISTENER = 0x0510
OFFER = 0x0511
REFUSED = 0x0512
_MAX_PATH_BYTES = 107  # of a Unix socket
_MIB = 1 << 20
# Pages of files, such as mapped weights, are not in it: both servers share them.
_OWN = frozenset({"Pss_Anon:", "Pss_Shmem:"})
_ANSWER_SECONDS = 60.0  # it measures its memory, and may be busy
_BACKLOG = 8  # servers that want to take over at the same time

_Message = TypeVar("_Message")

logger = logging.getLogger("embedline.supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """The descriptor that comes with this frame."""

    is_monitor: bool  # whether it is of the monitor port; else of the main one


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The facts of the running server that the successor needs. It comes after all listeners."""

    num_bytes: int  # of memory that a second server like it takes beside it
    devices: list[str]  # of all its engines
    kept_elsewhere: bool  # whether systemd keeps the sockets too


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The reason why the successor gets nothing."""

    reason: str  # one line


def encode(message: Any) -> list[Buffer]:
    """The payload of one of the dataclasses here."""
    return [json.dumps(to_json(message)).encode()]


def decode(kind: type[_Message], payload: Buffer) -> _Message:
    """The message of this payload. Raises ProtocolError."""
    return from_json(kind, json.loads(bytes(payload)))


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The running server: its sockets, which are ours too by now, and what it says of itself."""

    connection: DescriptorConnection
    http: Listeners
    monitor: Listeners | None
    offer: Offer

    @property
    def pid(self) -> int:
        """The process id of its supervisor."""
        return self.connection.peer.pid

    def drain(self) -> None:
        """Have it stop accepting, finish its requests and end."""
        self.http.kept_elsewhere = self.offer.kept_elsewhere
        with contextlib.suppress(OSError):  # it is gone already
            self.connection.send(DRAIN)

    def close(self) -> None:
        """Close the connection and our copies of the sockets. If it was not told to drain it goes on."""
        self.connection.close()
        for listeners in filter(None, (self.http, self.monitor)):
            listeners.close()

    def wait(self) -> None:
        """Block until it is gone."""
        self.connection.setblocking(True)
        with contextlib.suppress(EOFError, OSError, ProtocolError):
            while True:
                self.connection.receive()

    def watch(self) -> None:
        """Log the running server's end."""
        self.connection.setblocking(False)
        asyncio.get_running_loop().add_reader(self.connection, self._read)

    def _read(self) -> None:
        try:
            self.connection.receive()
        except (EOFError, OSError, ProtocolError):
            asyncio.get_running_loop().remove_reader(self.connection)
            self.http.kept_elsewhere = self.offer.kept_elsewhere
            logger.info("process %d, which served here before, has ended", self.pid)


def find(path: Path) -> Predecessor | None:
    """The server that waits there; None where none does. Raises SettingsError where it can't be taken over."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(_ANSWER_SECONDS)
    try:
        channel.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        channel.close()
        return None
    except OSError as error:
        channel.close()
        raise SettingsError(f"--takeover: the running server can't be reached: {error.strerror or error}") from None
    try:
        return _ask(DescriptorConnection(channel))
    except ProtocolError as error:
        raise SettingsError(f"--takeover: {error}; stop the running server first, then start this one") from None
    except EOFError:
        raise SettingsError("--takeover: the running server ended or refused the connection; start again") from None
    except TimeoutError:
        raise SettingsError(f"--takeover: the running server did not answer in {_ANSWER_SECONDS:g} s") from None


def _ask(connection: DescriptorConnection) -> Predecessor:
    """Raises SettingsError, ProtocolError, EOFError and TimeoutError; the connection is closed then."""
    try:
        if connection.peer.uid != os.getuid():
            raise SettingsError("--takeover: the running server is another user's")
        with contextlib.suppress(BrokenPipeError):  # it has closed already; what it said before says why
            connection.send(TAKE)
        return _answer(connection)
    except BaseException:
        connection.close()
        raise


def _answer(connection: DescriptorConnection) -> Predecessor:
    sockets: dict[bool, list[socket.socket]] = {False: [], True: []}
    while True:
        for kind, payload in connection.receive():
            if kind == LISTENER:
                listener = socket.socket(fileno=connection.descriptors.popleft())
                sockets[decode(Listener, payload).is_monitor].append(listener)
            elif kind == REFUSED:
                raise SettingsError(f"--takeover: the running server says: {decode(Refused, payload).reason}")
            elif kind == OFFER:
                # shared with it until it is told to drain
                http = Listeners(sockets[False], kept_elsewhere=True)
                monitor = Listeners(sockets[True], kept_elsewhere=True) if sockets[True] else None
                return Predecessor(connection, http, monitor, decode(Offer, payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """The running server's side of a takeover: what is handed over, and what the successor has to know."""

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
                if kind == TAKE:
                    self._asked(connection)
                elif kind == DRAIN and connection is self._successor:
                    self._is_taken = True
                    self._taken(connection.peer.pid)
        except (EOFError, OSError):
            self._lost(connection)
        except ProtocolError as error:
            logger.warning("a server that wanted to take over was refused: %s", error)
            self._lost(connection)

    def _asked(self, connection: DescriptorConnection) -> None:
        if reason := self._why_not():
            connection.send(REFUSED, encode(Refused(reason=reason)))
            return
        self._successor = connection
        self._server.http.kept_elsewhere = True
        logger.info("process %d takes over; until it is ready this server goes on", connection.peer.pid)
        self._offering = self._loop.create_task(self._offer(connection))

    def _why_not(self) -> str | None:
        if self._is_stopping:
            return "it is stopping; start again once it has ended"
        if self._successor is not None:
            return "another server is taking over already"
        return None if self._server.is_loaded() else "it is still loading; start again once it is ready"

    async def _offer(self, connection: DescriptorConnection) -> None:
        server = self._server
        num_bytes = await asyncio.to_thread(memory_of, server.pids())  # of gigabytes it takes a while
        offer = Offer(num_bytes=num_bytes, devices=list(server.devices), kept_elsewhere=self._was_kept_elsewhere)
        try:
            for listeners in filter(None, (server.http, server.monitor)):
                what = encode(Listener(is_monitor=listeners is server.monitor))
                for listener in listeners.sockets:
                    connection.send(LISTENER, what, descriptors=[listener.fileno()])
            connection.send(OFFER, encode(offer))
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


class NoPlace(Exception):
    """There is no such place that is safe; one line that says why."""


def place(host: str, port: int) -> Path:
    """The path of the socket where the server of this address waits for its successor.

    Makes its folder (0700) where there is none. Raises NoPlace.
    """
    folder = runtime_folder() / f"embedline_takeover-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise NoPlace(f"can't make the folder {folder}: {error.strerror}") from None
    # in /tmp anybody could have made it
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise NoPlace(f"{folder} is not a folder of this user alone (mode 0700)")
    path = folder / f"{host}-{port}.sock"
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise NoPlace(f"the path {path} is too long for a socket")
    return path


def memory_of(pids: Sequence[int]) -> int:
    """The bytes that these processes hold and that a second server like this one takes again."""
    return sum(map(_memory, pids))


def check_room(num_bytes: int) -> None:
    """Raises SettingsError where a second server like the running one, which takes so many bytes, does not fit."""
    free = free_memory()
    if num_bytes > free:
        raise SettingsError(
            f"--takeover: the running server holds {num_bytes // _MIB} MiB and a second one does not fit beside it: "
            f"{free // _MIB} MiB are free; stop the running server first, then start this one"
        )


def _memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0
    fields = (line.split() for line in text.splitlines())
    return sum(int(words[1]) * 1024 for words in fields if words[0] in _OWN)
