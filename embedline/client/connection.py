"""One keep-alive HTTP/1.1 connection, used by one thread at a time. Any thread may abort it.

The socket blocks without a timeout. Deadlines and cancellation shut it down from another thread, which ends every kind
of wait at once: for the connection, for TLS, for the head, within a body that comes byte by byte. The wait for the
host's address ends too.

Each request has an id, by which an answer is known to be another request's: a server or proxy may answer twice.
"""

import contextlib
import http.client
import queue
import re
import secrets
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Any

from embedline.client.answer import CutHead, HttpAnswer, WrongHead, read_head
from embedline.client.base_url import Origin
from embedline.client.failure import Failure, Kind

Found = list[tuple[Any, ...]] | OSError  # as socket.getaddrinfo gives them
Waiting = queue.SimpleQueue[Found]  # whoever waits may be told to stop, even by the handler of a signal
REQUEST_ID_HEADER = "x-request-id"
_MADE_HERE = re.compile(r"embedline-[0-9a-f]{10}-[0-9]+(\.[0-9]+)?")
_NO_SECRETS = ("accept", "content-type", "request-timeout-ms", REQUEST_ID_HEADER)  # what the client puts there itself
_BROKE_WHILE_SENT = "the connection broke while the request was sent"
_RESETS = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class Lookup:
    """The lookup of one host and port."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []  # for the look-up that is under way

    def begin(self, waiting: Waiting) -> None:
        """Have what is found put there: at once for a host that is an address. Raises Failure (NO_THREAD)."""
        try:
            waiting.put(self._look_up(socket.AI_NUMERICHOST))
            return
        except OSError:
            pass  # it is a name
        with self._lock:
            if not self._waiting:
                try:
                    threading.Thread(target=self._run, name="embedline look-up", daemon=True).start()
                except RuntimeError as error:
                    raise Failure(Kind.NO_THREAD, f"no look-up of the host's name: {error}") from error
            self._waiting.append(waiting)

    def _run(self) -> None:
        found: Found
        try:
            found = self._look_up(0)
        except (OSError, UnicodeError) as error:
            found = error if isinstance(error, OSError) else OSError(str(error))
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.put(found)

    def _look_up(self, flags: int) -> Found:
        return list(socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=flags))


def new_call_id() -> str:
    """The beginning of the ids of a call's requests."""
    return f"embedline-{secrets.token_hex(5)}"


def attempt_id(call_id: str, start: int, num_before: int) -> str:
    """The id of one attempt to send the batch that begins with this input, after so many others."""
    return f"{call_id}-{start}" + (f".{num_before}" if num_before else "")


def is_of_another(answered: str | None, sent: str | None) -> bool:
    """Whether an answer says that it is for another request of a client of ours. Ids that servers make say nothing.

    A proxy that adds its own id to ours leaves both, with a comma between them.
    """
    if answered is None or answered == sent:
        return False
    ids = [one.strip() for one in answered.split(",")]
    return sent not in ids and any(_MADE_HERE.fullmatch(one) for one in ids)


class HttpConnection:
    """Opened by `open`; the methods raise Failure. After one the connection is of no more use."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, lookup: Lookup) -> None:
        self._origin = origin
        self._tls = tls
        self._lookup = lookup
        self._looked_up: Waiting = queue.SimpleQueue()
        # So that a socket is not shut down after another took its number. Who holds it may be interrupted by a signal
        # whose handler cancels the call.
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._aborted: Kind | None = None
        self._broke_while_sent = False
        self._method = ""  # of the request that was sent last
        self._request_id: str | None = None  # of the same
        self._secrets: list[str] = []  # of the same: its key, and what else its head has that is not ours
        self.num_answers = 0

    def open(self, seconds: float) -> None:
        """Connect to the first address that answers; each may take so many seconds."""
        try:
            self._open(seconds)
        except ssl.SSLCertVerificationError as error:
            raise Failure(Kind.ANSWER, f"its certificate is not trusted: {error.verify_message}") from error
        except OSError as error:
            raise self._lost(f"no connection: {error.strerror or error}") from error

    def _open(self, seconds: float) -> None:
        failed: OSError | None = None
        for family, kind, protocol, _, address in self._addresses():
            opened = socket.socket(family, kind, protocol)
            try:
                self._hold(opened)
                opened.settimeout(seconds)
                opened.connect(address)
                if self._tls is not None:
                    opened = wrapped = self._tls.wrap_socket(
                        opened, server_hostname=self._origin.host, do_handshake_on_connect=False
                    )
                    self._hold(wrapped)  # so that an abort ends the handshake too
                    wrapped.do_handshake()
                opened.settimeout(None)
                if family != socket.AF_UNIX:
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return
            except OSError as error:
                opened.close()
                failed = error
        raise failed or OSError("the host has no address")

    def _addresses(self) -> list[tuple[Any, ...]]:
        """The addresses as socket.getaddrinfo gives them. Raises OSError."""
        if self._origin.unix_path:
            return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", self._origin.unix_path)]
        self._lookup.begin(self._looked_up)
        found = self._looked_up.get()
        if isinstance(found, OSError):
            raise found
        return found

    def _hold(self, opened: socket.socket) -> None:
        with self._lock:
            self._socket = opened
            if self._aborted is not None:
                raise OSError("aborted")

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Send a whole request. One that the server stopped reading may have its answer all the same, as 413.

        Whoever takes names and values from a user checks that no line ends in them.
        """
        assert self._socket is not None
        if self.num_answers and not self.is_idle:
            raise self._lost("something came on the connection before the request was sent")
        self._method, self._request_id = method, headers.get(REQUEST_ID_HEADER)
        self._secrets = [
            value.rpartition(" ")[2] for name, value in headers.items() if name not in _NO_SECRETS and value
        ]
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        try:
            self._socket.sendall(head + (body or b""))
        except _RESETS:
            self._broke_while_sent = True
        except OSError as error:
            raise self._lost(_BROKE_WHILE_SENT) from error

    def answer(self) -> HttpAnswer:
        """Wait for the head of the answer."""
        assert self._socket is not None
        try:
            response = read_head(self._socket, self._method)
        except OSError as error:
            words = "the server closed the connection without an answer"
            raise self._lost(_BROKE_WHILE_SENT if self._broke_while_sent else words) from error
        except CutHead:
            raise self._lost_in_body("the connection ended within the head of the answer") from None
        except (http.client.HTTPException, WrongHead, ValueError) as error:
            if self._aborted is not None or self._broke_while_sent:
                raise self._lost(_BROKE_WHILE_SENT) from error
            words = str(error) if isinstance(error, WrongHead) else "what came is not HTTP"
            raise Failure(Kind.ANSWER, words) from error
        # one out of a cache (RFC 9111, 5.1) was for another request by right
        if response.getheader("age") is None and is_of_another(response.getheader(REQUEST_ID_HEADER), self._request_id):
            response.close()
            raise self._lost("the answer to another request came")
        self.num_answers += 1
        return HttpAnswer(response, self._lost_in_body, self._secrets)

    def abort(self, kind: Kind) -> None:
        """End whatever waits on it, from any thread; that then fails with this kind."""
        with self._lock:
            if self._aborted is None:
                self._aborted = kind
                self._looked_up.put(OSError("aborted"))
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not TLS's own, which drops its state

    def close(self) -> None:
        """Close without a word to the server."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None and self._socket.fileno() >= 0

    @property
    def is_idle(self) -> bool:
        """Whether it is open and nothing has come unasked: that would be the server's good-bye."""
        if self._socket is None or not self.is_open or self._aborted is not None or self._broke_while_sent:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def _lost(self, words: str) -> Failure:
        is_stale = self._aborted is None and self.num_answers > 0
        return Failure(self._aborted or Kind.CONNECTION, words, is_stale=is_stale)

    def _lost_in_body(self, words: str) -> Failure:
        return Failure(self._aborted or Kind.CONNECTION, words)
