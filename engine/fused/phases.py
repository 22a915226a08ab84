"""How long each part of loading takes, for the log. Apart from start.py and loading.py, as both use it."""

import contextlib
import time
from collections.abc import Iterator


class Phases:
    """How long each part of loading took."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """The time in the `with` block counts for this part; a part may come more than once."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._seconds.items())
        return f"loaded in {time.perf_counter() - self._began:.1f} s: {parts}"
