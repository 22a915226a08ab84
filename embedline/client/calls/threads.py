"""Threads that do a client's work. They are daemons: an interpreter that ends waits for no server."""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from embedline.client.errors import NoThread

T = TypeVar("T")


class Threads:
    """Up to `most` threads, each started when all others are at work. The process that uses them first has them."""

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None = end
        self._num_started = 0
        self._num_open = 0  # pieces of work that have not ended
        self._is_closed = False
        self._process: int | None = None

    @property
    def are_elsewhere(self) -> bool:
        """Whether this process was forked from the one that has them."""
        return self._process not in (None, os.getpid())

    def claim(self) -> None:
        """Raises RuntimeError once closed, and in a process that was forked after the first use."""
        if self._process is None:
            self._process = os.getpid()
        if self.are_elsewhere:
            raise RuntimeError("the client was used before this process was forked; make one in each process")
        if self._is_closed:
            raise RuntimeError("the client is closed")

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Do it once a thread is free. Raises as `claim`, and NoThread where there is none and none can be started."""
        self.claim()  # before the lock, which nobody releases after a fork
        future: Future[T] = Future()
        with self._lock:
            self.claim()
            is_one_more = self._num_open >= self._num_started < self._most
            self._num_started += is_one_more
            self._num_open += 1
            self._work.put(partial(_carry_out, future, work))
        if is_one_more:
            self._start(future)
        return future

    def _start(self, future: "Future[Any]") -> None:
        """One more thread, without the lock, which the others need to go on. Where the system has none, they do it."""
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._num_started -= 1
                is_none_left = not self._num_started
            if is_none_left and future.cancel():  # or it would be done in vain once there is a thread again
                raise NoThread(f"the system starts no thread: {error}") from error

    def close(self) -> None:
        """The threads end after what was submitted until now. After a fork it does nothing: they are the other's."""
        if self.are_elsewhere:
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in range(self._num_started):
                    self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # nothing is kept alive while the thread waits
            with self._lock:
                self._num_open -= 1


def _carry_out(future: "Future[T]", work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # it is raised where the result is asked for
        future.set_exception(error)
        del future  # the error's traceback has this frame, and would keep what has the error
    else:
        future.set_result(result)
