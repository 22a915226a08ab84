"""What every part is given: the clock, the rows, how long it may take, and what to do with what fails."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from benchmarks.gpu.clock import Clock
from benchmarks.gpu.rows import FAILED, Figure, Key, Rows

_MAX_REASON = 200  # characters
_MAX_BEGUN = 2  # times that something is begun which ends the process


class TimeUp(Exception):
    """The part's time is over; what is left is measured when it is taken up again."""


class BrokenDevice(Exception):
    """A kernel has left the process without its device; a new process can go on behind it."""


@dataclass(slots=True)
class Bench:
    """One process' part of a part."""

    clock: Clock
    rows: Rows
    is_tiny: bool  # toy sizes: the numbers mean nothing
    deadline: float  # time.monotonic() seconds

    def sized(self, full: float, tiny: float) -> float:
        """Seconds to measure for."""
        return tiny if self.is_tiny else full

    def measure(
        self, key: Key, work: Callable[[], Iterable[Figure]], *, again: bool = False, max_begun: int = _MAX_BEGUN
    ) -> None:
        """Unless its rows are there. What fails is a row too. Raises TimeUp and BrokenDevice.

        max_begun: so often it may end the process.
        """
        if key in self.rows and not again:
            return
        self.check_time()
        if self.rows.num_begun(key) >= max_begun and not again:
            self.rows.fail(key, f"the process ended in it, {max_begun} times")
            return
        try:
            figures = self.rows.add(key, work())
        except Exception as error:  # one candidate must not take the others along
            figures = [self.rows.fail(key, one_line(error))]
        print(f"{key}: " + ", ".join(map(_shown, figures)), flush=True)
        self._check_device()

    def are_missing(self, keys: Iterable[Key]) -> bool:
        """Whether there is anything to prepare for."""
        return any(key not in self.rows for key in keys)

    def check_time(self) -> None:
        """Raises TimeUp."""
        if time.monotonic() > self.deadline:
            raise TimeUp

    def release(self) -> None:
        """Give memory that nothing holds back to the device, for other processes."""
        if self.clock.is_gpu:
            torch.cuda.empty_cache()

    def _check_device(self) -> None:
        try:
            self.clock.synchronize()
        except RuntimeError as error:
            raise BrokenDevice(one_line(error)) from error
        self.release()


def one_line(error: Exception) -> str:
    """What went wrong, for a table."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON]


def _shown(figure: Figure) -> str:
    value = "" if figure.metric == FAILED else f" {figure.value:.4g} {figure.unit}"
    return f"{figure.metric}{value}" + (f" ({figure.note})" if figure.note else "")
