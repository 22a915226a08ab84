"""The successor's side: finds the running server, gets its listening sockets, and tells it when to drain."""

import asyncio
import contextlib
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from server.settings.flag import SettingsError
from server.supervisor.listening.listeners import Listeners
from server.supervisor.takeover import messages
from server.supervisor.takeover.messages import Offer
from wire.descriptors import DescriptorConnection
from wire.frames import ProtocolError

_ANSWER_SECONDS = 60.0  # it measures its memory, and may be busy

logger = logging.getLogger("embedline.supervisor")


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The running server: its sockets, which are ours too by now, and what it says of itself."""

    connection: DescriptorConnection
    http: Listeners
    monitor: Listeners | None
    offer: Offer

    @property
    def pid(self) -> int:
        """Of its supervisor."""
        return self.connection.peer.pid

    def drain(self) -> None:
        """Have it stop accepting, finish its requests and end."""
        self.http.kept_elsewhere = self.offer.kept_elsewhere
        with contextlib.suppress(OSError):  # it is gone already
            self.connection.send(messages.DRAIN)

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
        """Log its end."""
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
            connection.send(messages.TAKE)
        return _answer(connection)
    except BaseException:
        connection.close()
        raise


def _answer(connection: DescriptorConnection) -> Predecessor:
    sockets: dict[bool, list[socket.socket]] = {False: [], True: []}
    while True:
        for kind, payload in connection.receive():
            if kind == messages.LISTENER:
                listener = socket.socket(fileno=connection.descriptors.popleft())
                sockets[messages.decode_listener(payload).is_monitor].append(listener)
            elif kind == messages.REFUSED:
                raise SettingsError(f"--takeover: the running server says: {messages.decode_refused(payload).reason}")
            elif kind == messages.OFFER:
                # shared with it until it is told to drain
                http = Listeners(sockets[False], kept_elsewhere=True)
                monitor = Listeners(sockets[True], kept_elsewhere=True) if sockets[True] else None
                return Predecessor(connection, http, monitor, messages.decode_offer(payload))
