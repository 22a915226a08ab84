"""The shared page: numbers that any process may read without asking, each written by one process.

It is an anonymous memory file (memfd) made by the supervisor and inherited by the others as a
descriptor, so it needs no name and goes with the last process. Every cell is 8 bytes and aligned,
so a reader sees an old value or a new one, never half of each.
"""

import mmap
import os
import struct
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from wire.vocabulary import NUM_CLASSES

_HEADER = struct.Struct("<8sIIII")  # magic, version, frontends, batch managers, models
_MAGIC = b"EMBLPAGE"
_VERSION = 1
_Cell = TypeVar("_Cell", np.int64, np.float64)
_CELLS_AT = 64  # bytes: the header's own cache line


class Page:
    """F frontends, M batch managers, N models, C classes.

    queued_tokens      int64   [M, N, C]  tokens held by a batch manager: waiting or in an engine
    tokens_per_second  float64 [M, N]     measured rate of a batch manager's ready engines, or of the last ones
                               while none is there; 0 = not known yet
    engines_ready      int64   [M, N]     how many of its engines can take a batch now
    oldest_since       float64 [M, N, C]  time.monotonic() at which the oldest waiting item came; 0 = none waits
    last_batch_at      float64 [M, N]     time.monotonic() of the last finished batch; 0 = none yet
    admitted_tokens    int64   [F, N, C]  estimated tokens a frontend admitted and has not yet handed over

    The first five are written by their batch manager, the last by its frontend; the supervisor
    clears the row of a process that died.
    """

    def __init__(self, fd: int, num_frontends: int, num_managers: int, num_models: int) -> None:
        self.fd = fd
        self.num_frontends, self.num_managers, self.num_models = num_frontends, num_managers, num_models
        self._memory = mmap.mmap(fd, 0)  # all of it
        self._next_cell = _CELLS_AT
        by_class = (num_managers, num_models, NUM_CLASSES)
        self.queued_tokens: NDArray[np.int64] = self._take(np.int64, by_class)
        self.tokens_per_second: NDArray[np.float64] = self._take(np.float64, by_class[:2])
        self.engines_ready: NDArray[np.int64] = self._take(np.int64, by_class[:2])
        self.oldest_since: NDArray[np.float64] = self._take(np.float64, by_class)
        self.last_batch_at: NDArray[np.float64] = self._take(np.float64, by_class[:2])
        self.admitted_tokens: NDArray[np.int64] = self._take(np.int64, (num_frontends, num_models, NUM_CLASSES))

    @classmethod
    def create(cls, *, num_frontends: int, num_managers: int, num_models: int) -> Self:
        """Make a page of zeros; its descriptor is `fd`."""
        fd = os.memfd_create("embedline-page", os.MFD_CLOEXEC)
        by_manager, by_frontend = 3 + 2 * NUM_CLASSES, NUM_CLASSES  # cells for each model
        os.ftruncate(fd, _CELLS_AT + 8 * num_models * (num_managers * by_manager + num_frontends * by_frontend))
        os.pwrite(fd, _HEADER.pack(_MAGIC, _VERSION, num_frontends, num_managers, num_models), 0)
        return cls(fd, num_frontends, num_managers, num_models)

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Map a page that another process made. Raises ValueError where it is not one of this version."""
        magic, version, *counts = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"descriptor {fd} is not a shared page of version {_VERSION}")
        return cls(fd, *counts)

    def clear_manager(self, index: int) -> None:
        """Forget what a dead batch manager published."""
        for cells in (self.queued_tokens, self.engines_ready, self.oldest_since):
            cells[index] = 0

    def clear_frontend(self, index: int) -> None:
        """Forget what a dead frontend had admitted."""
        self.admitted_tokens[index] = 0

    def _take(self, dtype: type[_Cell], shape: tuple[int, ...]) -> NDArray[_Cell]:
        count = int(np.prod(shape))
        cells = np.frombuffer(self._memory, dtype=dtype, count=count, offset=self._next_cell).reshape(shape)
        self._next_cell += 8 * count
        return cells
