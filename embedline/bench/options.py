"""The options of a run, checked before anything is sent. Knows no sockets."""

import math
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROUTES = ("/v1/embeddings", "/embed")
ENCODINGS = ("float", "base64", "bytes")
ARRIVALS = ("poisson", "fixed")
CLASSES = ("interactive", "bulk")


class OptionsError(ValueError):
    """An option is impossible; the message is one line that names its flag."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server's address."""

    host: str
    port: int
    is_tls: bool
    prefix: str  # what stands before the route in the path, without a slash at its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run. Raises OptionsError where a value is out of its bounds."""

    url: str
    concurrency: int = 64  # requests in flight; with `rate` the most that may be
    batch_size: int = 1  # texts a request
    rate: float | None = None  # requests a second, whether answers come or not; None = closed loop
    arrivals: str = "poisson"  # with `rate`
    duration: float = 10.0  # seconds
    requests: int | None = None  # instead of `duration`
    warmup: float = 2.0  # seconds, before what is counted
    timeout: float = 60.0  # seconds a request may take
    texts: Path | None = None
    model: str = "default"
    api_key: str | None = None
    route: str = ROUTES[0]
    encoding: str = ENCODINGS[0]
    request_class: str | None = None
    seed: int = 0
    json: Path | None = None

    def __post_init__(self) -> None:
        parse_url(self.url)
        for flag, count in (("--concurrency", self.concurrency), ("--batch-size", self.batch_size)):
            _check(count >= 1, flag, f"must be at least 1, not {count}")
        _check(self.requests is None or self.requests >= 1, "--requests", f"must be at least 1, not {self.requests}")
        for flag, seconds in (("--duration", self.duration), ("--timeout", self.timeout), ("--rate", self.rate)):
            _check(seconds is None or 0 < seconds < math.inf, flag, f"must be above 0, not {seconds}")
        _check(0 <= self.warmup < math.inf, "--warmup", f"must be 0 or more, not {self.warmup}")
        _check(self.seed >= 0, "--seed", f"must be 0 or more, not {self.seed}")
        _check_one_of("--route", self.route, ROUTES)
        _check_one_of("--encoding", self.encoding, ENCODINGS)
        _check_one_of("--arrivals", self.arrivals, ARRIVALS)
        if self.request_class is not None:
            _check_one_of("--class", self.request_class, CLASSES)
        is_offered = self.route != "/embed" or self.encoding != "base64"
        _check(is_offered, "--encoding", "base64 is not offered by the route /embed")
        is_header = self.api_key is None or (self.api_key.isascii() and self.api_key.isprintable())
        _check(is_header, "--api-key", "must be printable ASCII")


def _check(is_good: bool, flag: str, problem: str) -> None:
    if not is_good:
        raise OptionsError(f"{flag} {problem}")


def _check_one_of(flag: str, value: str, choices: tuple[str, ...]) -> None:
    _check(value in choices, flag, f"must be one of {', '.join(choices)}")


def parse_url(url: str) -> Target:
    """`http://host:port/prefix`, or `host:port`. Raises OptionsError."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise OptionsError(f"URL is not one: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise OptionsError("URL must be like http://127.0.0.1:8080")
    if not (parts.path.isascii() and parts.path.isprintable()) or " " in parts.path:
        raise OptionsError("URL must be printable ASCII without spaces")
    is_tls = parts.scheme == "https"
    return Target(parts.hostname, port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/"))
