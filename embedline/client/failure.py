"""Why one attempt brought no answer. What becomes of it is decided elsewhere."""

import email.utils
import enum
import json
import time
from datetime import UTC

_MAX_WORDS = 300  # characters taken from a server's own message


class Kind(enum.Enum):
    """The kind of a failure."""

    STATUS = "status"  # an answer with another status than 2xx
    CONNECTION = "connection"  # not opened, reset, or ended before the answer was whole
    TIMEOUT = "timeout"  # no whole answer in the attempt's time
    NO_TURN = "no turn"  # on our side: no thread or connection was free in the attempt's time
    NO_THREAD = "no thread"  # on our side: the system starts none
    ANSWER = "answer"  # a whole answer that is wrong
    ABORTED = "aborted"  # on our side: the call was cancelled, or another attempt was faster


class Failure(Exception):
    """One attempt without an answer that can be used."""

    def __init__(
        self,
        kind: Kind,
        words: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        body: bytes = b"",
        is_stale: bool = False,
    ) -> None:
        super().__init__(words)
        self.kind = kind
        self.words = words
        self.status = status
        self.retry_after = retry_after  # seconds that the server asks to wait
        self.body = body  # the beginning, of an answer with an error
        self.is_stale = is_stale  # a kept connection was of no more use before the request came


def refused(status: int, body: bytes, *, retry_after: str | None, location: str | None) -> Failure:
    """An answer with another status than 2xx, with what its server says about it."""
    words = f"HTTP {status}"
    if location is not None and 300 <= status < 400:
        words += f", a redirect to {printable(location.partition('?')[0])}, which is not followed: give that address"
    elif message := _message(body):
        words += f": {message}"
    seconds = None if retry_after is None else read_retry_after(retry_after, now=time.time())
    return Failure(Kind.STATUS, words, status=status, retry_after=seconds, body=body)


def read_retry_after(value: str, *, now: float) -> float | None:
    """Seconds to wait, from a number of seconds or a date (RFC 9110, 10.2.3). None if it is neither.

    `now`: seconds since 1970.
    """
    value = value.strip()
    if value.replace(".", "", 1).isdigit() and value.isascii():
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
        if date.tzinfo is None:  # asctime's form; every date of HTTP is in UTC
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - now)
    except (ValueError, OverflowError, TypeError, IndexError):  # whatever a wrong date leads the parser to
        return None


def _message(body: bytes) -> str:
    """The server's own words; where they are in no form that is known, how its body begins."""
    try:
        found = json.loads(body)
        return message_in(found) or printable(found if isinstance(found, str) else json.dumps(found))
    except (ValueError, RecursionError):
        return printable(body[:_MAX_WORDS].decode(errors="replace"))


def message_in(content: object) -> str:
    """The server's words in an object, where it writes errors as OpenAI, TEI, FastAPI or Cohere do; "" = none."""
    found = content
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name) is not None:
            found = found[name]
    if found is content:
        return ""
    return printable(found if isinstance(found, str) else json.dumps(found))


def printable(text: str) -> str:
    """The text on one line, without what a terminal would act on."""
    cut = text[: 4 * _MAX_WORDS]
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in cut).split())
    return line if len(line) <= _MAX_WORDS else line[:_MAX_WORDS] + "…"
