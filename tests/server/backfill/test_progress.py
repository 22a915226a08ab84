"""How far a job is: a bar on a terminal, JSON lines elsewhere."""

import io
import json

from server.features.backfill.work import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar() -> None:
    stream = Terminal()
    progress = Progress(100, 20, stream=stream)
    progress.computed(30, num_tokens=300)
    progress.end("done")
    assert "50/100" in stream.getvalue()
    assert "tokens/s" in stream.getvalue()


def test_elsewhere_there_is_a_line_every_ten_seconds() -> None:
    stream, now = io.StringIO(), [0.0]
    progress = Progress(100, 20, stream=stream, clock=lambda: now[0])
    for second in range(1, 13):
        now[0] = float(second)
        progress.computed(1, num_tokens=10)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["rows"], line["of"], line["tokens"]) == ("progress", 30, 100, 100)
    assert (line["rows_per_second"], line["tokens_per_second"], line["seconds_left"]) == (1.0, 10.0, 70)
