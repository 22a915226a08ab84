"""Two copies of one request: a second is sent where the first has no answer in time, and the first good head wins.

A thread sends the second copy and waits for its head. So no server that is slow to connect, that sends half of a head
or TLS's own messages alone, keeps the other copy waiting. The loser's connection is closed, which tells its server to
drop the work.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from embedline.client.transport.failure import Failure


class Copy(Protocol):
    """One of the two."""

    def receive(self) -> None:
        """Send the request and wait for a good head. Raises Failure."""
        ...

    def abort(self) -> None:
        """End `receive`, now or as soon as it begins. From any thread."""
        ...


C = TypeVar("C", bound=Copy)


class Race(Generic[C]):
    """Between a copy and one that is made after `delay` seconds without a head."""

    def __init__(self, first: C, delay: float, make_second: Callable[[], C | None]) -> None:
        """`make_second` runs in another thread, and never after `run` has returned; None = there is to be no second."""
        self._first = first
        self._delay = delay
        self._make_second = make_second
        self._first_ended = threading.Event()
        self._lock = threading.Lock()
        self._second: C | None = None
        self._winner: C | None = None

    def run(self) -> C:
        """The winner. Raises the first copy's Failure where there is none."""
        failure: Failure | None = None
        other = threading.Thread(target=self._run_second, name="embedline hedge", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system starts no thread: there is no second
            other.start()
        try:
            self._first.receive()
            self._finish(self._first)
        except Failure as error:  # the second goes on, if there is one by now
            failure = error
        except BaseException:
            self._finish(self._first)
            raise
        finally:
            self._first_ended.set()
            if other.ident is not None:
                other.join()
        if self._winner is None:
            assert failure is not None
            raise failure
        return self._winner

    def _run_second(self) -> None:
        if self._first_ended.wait(self._delay) or (second := self._make_second()) is None:
            return
        with self._lock:
            if self._winner is not None:
                return
            self._second = second
        with contextlib.suppress(Failure):
            second.receive()
            self._finish(second)

    def _finish(self, copy: C) -> None:
        """It wins unless the other one has."""
        with self._lock:
            if self._winner is not None:
                return
            self._winner = copy
        rival = self._second if copy is self._first else self._first
        if rival is not None:
            rival.abort()
