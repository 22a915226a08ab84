"""The shared page: numbers that any process may read without asking, each written by one process at a time.

It is an anonymous memory file (memfd) made by the supervisor and inherited by the others as a
descriptor, so it needs no name and goes with the last process. Every cell is 8 bytes and aligned,
so a reader sees an old value or a new one, never half of each. struct.pack_into would show it zeros
that nobody wrote, since it clears all of its target first.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import weakref
from collections.abc import Iterator
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from wire.vocabulary import NUM_CLASSES

_HEADER = struct.Struct("<8sIIIII")  # magic, version, frontends, batch managers, models, keys
_MAGIC = b"EMBLPAGE"
_VERSION = 6
_NUM_REFUSED = 64
_Cell = TypeVar("_Cell", np.int64, np.float64)
_CELLS_AT = 64  # bytes: the header's own cache line


class Page:
    """F frontends, M batch managers, N models, C classes, K API keys (at least one).

    queued_tokens      int64   [M, N, C]  tokens held by a batch manager: waiting or in an engine
    tokens_per_second  float64 [M, N]     measured rate of a batch manager's ready engines, or of the last ones
                               while none is there; 0 = not known yet
    streams            int64   [M, N]     streams of these engines, each as fast as the others; 0 = not known yet
    engines_ready      int64   [M, N]     how many of its engines can take a batch now
    oldest_since       float64 [M, N, C]  time.monotonic() at which the oldest waiting item came; 0 = none waits
    last_batch_at      float64 [M, N]     time.monotonic() of the last finished batch; 0 = none yet
    computing_tokens   int64   [M, N, C]  those of queued_tokens that are in an engine
    free_at            float64 [M, N, C]  time.monotonic() at which its engines will be done with what goes before new
                               work of a class
    batch_seconds      float64 [M, N]     how long its largest batch computes; 0 = not known yet
    published_at       float64 [M]        time.monotonic() at which a batch manager last wrote its cells; 0 = never
    admitted_tokens    int64   [F, N, C]  tokens that a frontend let in and has no answer for; estimated until they are
                               tokenized. Without those that it keeps back
    admitted_by_key    int64   [F, N, C, K]  the same by API key, where there are several
    kept_back_tokens   int64   [F, N, C, K]  those that it keeps back until there is room for their rows
    key_names          int64   [K]        hash of the name of the key whose place it is; 0 = nobody's
    spent_minute       int64   [F, K]     the minute (of time.monotonic()) in which a key last spent tokens
    spent_tokens       int64   [F, K]     what it spent in that minute
    spent_before       int64   [F, K]     what it spent in the minute before that one
    num_connections    int64   [F]        connections that a frontend has, and one more; 0 = it accepts none
    tokenizing         int64   [F]        hash of the text that the tokenizer in a frontend works on; 0 = none
    refused            int64   [64]       hashes of the texts in which frontends died; the first is 0 while none did
    refused_until      float64 [64]       time.monotonic() until which such a text is refused

    The first ten are written by their batch manager, `key_names` and the last two by any frontend that holds the lock,
    the others by their frontend; who gives a place to another key clears its `spent_minute`. The supervisor clears the
    row of a process that died, but not what keys have spent, and what it was tokenizing: the next process goes on with
    that.
    """

    def __init__(self, fd: int, num_frontends: int, num_managers: int, num_models: int, num_keys: int) -> None:
        self.fd = fd
        self.num_frontends, self.num_managers, self.num_models = num_frontends, num_managers, num_models
        self.num_keys = num_keys
        self._memory = mmap.mmap(fd, 0)  # all of it
        self._next_cell = _CELLS_AT
        by_class = (num_managers, num_models, NUM_CLASSES)
        self.queued_tokens: NDArray[np.int64] = self._take(np.int64, by_class)
        self.tokens_per_second: NDArray[np.float64] = self._take(np.float64, by_class[:2])
        self.streams: NDArray[np.int64] = self._take(np.int64, by_class[:2])
        self.engines_ready: NDArray[np.int64] = self._take(np.int64, by_class[:2])
        self.oldest_since: NDArray[np.float64] = self._take(np.float64, by_class)
        self.last_batch_at: NDArray[np.float64] = self._take(np.float64, by_class[:2])
        self.computing_tokens: NDArray[np.int64] = self._take(np.int64, by_class)
        self.free_at: NDArray[np.float64] = self._take(np.float64, by_class)
        self.batch_seconds: NDArray[np.float64] = self._take(np.float64, by_class[:2])
        self.published_at: NDArray[np.float64] = self._take(np.float64, (num_managers,))
        by_key = (num_frontends, num_models, NUM_CLASSES, num_keys)
        self.admitted_tokens: NDArray[np.int64] = self._take(np.int64, by_key[:3])
        self.admitted_by_key: NDArray[np.int64] = self._take(np.int64, by_key)
        self.kept_back_tokens: NDArray[np.int64] = self._take(np.int64, by_key)
        self.key_names: NDArray[np.int64] = self._take(np.int64, (num_keys,))
        spent = (num_frontends, num_keys)
        self.spent_minute: NDArray[np.int64] = self._take(np.int64, spent)
        self.spent_tokens: NDArray[np.int64] = self._take(np.int64, spent)
        self.spent_before: NDArray[np.int64] = self._take(np.int64, spent)
        self.num_connections: NDArray[np.int64] = self._take(np.int64, (num_frontends,))
        self.tokenizing: NDArray[np.int64] = self._take(np.int64, (num_frontends,))
        self.refused: NDArray[np.int64] = self._take(np.int64, (_NUM_REFUSED,))
        self.refused_until: NDArray[np.float64] = self._take(np.float64, (_NUM_REFUSED,))

    @classmethod
    def create(cls, *, num_frontends: int, num_managers: int, num_models: int, num_keys: int = 1) -> Self:
        """Make a page of zeros; its descriptor is `fd`, which is closed with it."""
        fd = os.memfd_create("embedline-page", os.MFD_CLOEXEC)
        of_managers = num_managers * (num_models * (5 + 4 * NUM_CLASSES) + 1)
        of_frontends = num_frontends * (num_models * NUM_CLASSES * (1 + 2 * num_keys) + 3 * num_keys + 2)
        os.ftruncate(fd, _CELLS_AT + 8 * (of_managers + of_frontends + num_keys + 2 * _NUM_REFUSED))
        os.pwrite(fd, _HEADER.pack(_MAGIC, _VERSION, num_frontends, num_managers, num_models, num_keys), 0)
        page = cls(fd, num_frontends, num_managers, num_models, num_keys)
        weakref.finalize(page, os.close, fd)
        return page

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Map a page that another process made. Raises ValueError where it is not one of this version."""
        magic, version, *counts = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"descriptor {fd} is not a shared page of version {_VERSION}")
        return cls(fd, *counts)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Run a block while no other process is in one. For moments only, as the others stand still."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def clear_manager(self, index: int) -> None:
        """Forget what a dead batch manager published."""
        its = (self.queued_tokens, self.computing_tokens, self.engines_ready, self.oldest_since, self.free_at)
        for cells in (*its, self.published_at):
            cells[index] = 0

    def clear_frontend(self, index: int) -> None:
        """Forget what a dead frontend had admitted and accepted."""
        for cells in (self.admitted_tokens, self.admitted_by_key, self.kept_back_tokens, self.num_connections):
            cells[index] = 0

    def _take(self, dtype: type[_Cell], shape: tuple[int, ...]) -> NDArray[_Cell]:
        count = int(np.prod(shape))
        cells = np.frombuffer(self._memory, dtype=dtype, count=count, offset=self._next_cell).reshape(shape)
        self._next_cell += 8 * count
        return cells
