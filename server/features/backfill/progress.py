"""Shows how far a job is: a bar on a terminal, else a JSON object a line, every ten seconds and at the end."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

_LINE_SECONDS = 10.0


class Progress:
    """Of one process. Rows that earlier ones have done count as done, and not for the speed."""

    def __init__(
        self,
        num_rows: int,
        num_done: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`num_rows`: all that this worker has to do, those that are done included."""
        self._stream = sys.stdout if stream is None else stream
        self._clock = clock
        self._num_rows, self._num_done, self._num_before = num_rows, num_done, num_done
        self._num_tokens = self._num_failed = self._num_truncated = 0
        self._began = self._shown_at = clock()
        self._bar: Any = _bar(num_rows, num_done, self._stream) if self._stream.isatty() else None

    def computed(self, num_rows: int, *, num_tokens: int = 0, num_truncated: int = 0) -> None:
        """So many more rows have their answer."""
        self._num_done += num_rows
        self._num_tokens += num_tokens
        self._num_truncated += num_truncated
        if self._bar is not None:
            words = f"{self._speed(self._num_tokens):,.0f} tokens/s"
            self._bar.update(self._bar.task_ids[0], completed=self._num_done, words=words)
        elif self._clock() - self._shown_at >= _LINE_SECONDS:
            self._shown_at = self._clock()
            self._print({"event": "progress", **self.figures()})

    def failed(self, num_rows: int, *, num_unsent: int = 0) -> None:
        """So many of the rows have no vector. Those that were sent to no engine are done by that."""
        self._num_failed += num_rows
        self._num_done += num_unsent

    def end(self, event: str, **more: Any) -> None:
        """The last line."""
        if self._bar is not None:
            self._bar.stop()
        self._print({"event": event, **self.figures(), **more})

    def figures(self) -> Mapping[str, Any]:
        """As they are printed."""
        speed = self._speed(self._num_done - self._num_before)
        return {
            "rows": self._num_done,
            "of": self._num_rows,
            "failed": self._num_failed,
            "truncated": self._num_truncated,
            "tokens": self._num_tokens,
            "rows_per_second": round(speed, 1),
            "tokens_per_second": round(self._speed(self._num_tokens), 1),
            "seconds": round(self._clock() - self._began, 1),
            "seconds_left": round((self._num_rows - self._num_done) / speed) if speed else None,
        }

    def _speed(self, count: int) -> float:
        return count / max(self._clock() - self._began, 1e-9)

    def _print(self, fields: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(fields) + "\n")
        self._stream.flush()


def _bar(num_rows: int, num_done: int, stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[words]}"), TimeRemainingColumn())
    bar = Bar(*columns, console=Console(file=stream))
    bar.start()
    bar.add_task("rows", total=num_rows, completed=num_done, words="")
    return bar
