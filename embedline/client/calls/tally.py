"""What answers have in common, summed up over one call."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedline.client.calls.runner import Finished
from embedline.client.responses import Usage


class Tally:
    """Of a call with so many inputs."""

    def __init__(self, num_inputs: int) -> None:
        self._began = time.monotonic()
        self.done = np.zeros(num_inputs, np.bool_)
        self._seconds: list[float] = []
        self._model: str | None = None
        self._num_tokens: int | None = 0
        self._num_truncated: int | None = 0

    def add(self, finished: Finished[Any], *, failed: NDArray[np.bool_] | None = None) -> None:
        """One more answer. `failed`: bool [items], which of its inputs have no result all the same."""
        part = finished.part
        self.done[finished.batch.start : finished.batch.stop] = True if failed is None else ~failed
        self._seconds.append(finished.seconds)
        self._model = part.model or self._model
        self._num_tokens = _sum(self._num_tokens, part.prompt_tokens)
        self._num_truncated = _sum(self._num_truncated, part.truncated)

    def fields(self) -> dict[str, Any]:
        """Those that all kinds of Response have."""
        tokens = self._num_tokens
        return {
            "done": self.done,
            "model": self._model,
            "usage": None if tokens is None else Usage(prompt_tokens=tokens, total_tokens=tokens),
            "truncated_inputs": self._num_truncated,
            "total_time": time.monotonic() - self._began,
            "individual_request_times": tuple(self._seconds),
        }


def _sum(so_far: int | None, more: int | None) -> int | None:
    """None once any is not known."""
    return None if so_far is None or more is None else so_far + more
