"""What a process writes to standard error: whatever is in a name or a reason, a record is a line of its own."""

import json
import logging
import sys

import pytest

from wire.process import JsonLines, RateLimit, TextLines

FORGED = "a\nFORGED CRITICAL\r\x1b[2J\x00\x85\u2028\x9b1m"


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("embedline.test", logging.WARNING, __file__, 1, message, arguments, exc_info)


def failure(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError:
        error = sys.exception()
        assert error is not None
        return error


def test_a_line_of_text() -> None:
    line = TextLines("frontend 0").format(record("took %d ms", 5))

    assert line.endswith(" WARNING frontend 0: took 5 ms")


@pytest.mark.holds("Log lines cannot be forged")
@pytest.mark.parametrize("formatter", [TextLines("frontend 0"), JsonLines("frontend 0")])
def test_a_message_can_not_forge_a_line(formatter: logging.Formatter) -> None:
    line = formatter.format(record("model %s", FORGED))

    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_a_traceback_follows_indented_and_its_text_can_not_forge_a_line() -> None:
    first, *rest = TextLines("frontend 0").format(record("failed", error=failure(FORGED))).splitlines()

    assert first.endswith("failed")
    assert rest[0].strip() == "Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert any("FORGED" in line for line in rest)


def test_a_line_of_json() -> None:
    line = json.loads(JsonLines("engine 1").format(record("took %d ms", 5, error=failure(FORGED))))

    assert line.pop("ts").endswith("Z")
    assert FORGED.splitlines()[0] in line.pop("exception")
    assert line == {"level": "warning", "process": "engine 1", "logger": "embedline.test", "message": "took 5 ms"}


def test_a_storm_of_one_message_gets_some_lines_a_second() -> None:
    limit = RateLimit()

    def passed(message: str, at: float, *arguments: object, level: int = logging.WARNING) -> list[str]:
        one = record(message, *arguments)
        one.created, one.levelno = at, level
        return [one.getMessage()] if limit.filter(one) else []

    storm = [line for number in range(1000) for line in passed("request %d failed", 7.5, number)]
    assert storm == [f"request {number} failed" for number in range(100)]
    assert passed("another", 7.6) == ["another"]
    assert passed("request %d failed", 8.0, 1) == ["request 1 failed (900 more like this were left out)"]
    assert passed("request %d failed", 8.1, 2) == ["request 2 failed"]
    assert sum(len(passed("details", 9.0, level=logging.DEBUG)) for _ in range(200)) == 200
