"""What headers say of a request, and that nonsense in them is the client's fault and never ours."""

import math
import time

import pytest

from server.dialects.writing.forms import Container
from server.http.headers import read_options
from server.requests.errors import InvalidRequest, UnsupportedMedia
from wire.vocabulary import RequestClass


@pytest.mark.holds("Deadlines")
def test_without_headers_there_are_no_options() -> None:
    options = read_options({b"host": b"a", b"user-agent": b"b"})

    assert (options.request_class, options.deadline, options.accepts) == (None, math.inf, Container.JSON)


@pytest.mark.holds("OpenAI's route")
@pytest.mark.parametrize(
    ("accept", "raw"),
    [
        (b"application/octet-stream", True),
        (b"application/octet-stream;q=0.9, application/json;q=0.1", True),
        (b"application/octet-stream, application/json", True),
        (b"text/plain, application/octet-stream", True),
        (b"*/*, application/octet-stream", True),
        (b"application/json, application/octet-stream", False),
        (b"application/json", False),
        (b"application/json, application/msgpack", False),  # as baseten-performance-client sends it
        (b"*/*", False),
        (b"", False),
    ],
)
def test_accept(accept: bytes, raw: bool) -> None:
    assert read_options({b"accept": accept}).accepts is (Container.RAW if raw else Container.JSON)


@pytest.mark.holds("Two classes of work")
@pytest.mark.parametrize(
    ("value", "request_class"),
    [(b"interactive", RequestClass.INTERACTIVE), (b"bulk", RequestClass.BULK), (b"Bulk", RequestClass.BULK)],
)
def test_class(value: bytes, request_class: RequestClass) -> None:
    assert read_options({b"x-embedline-class": value}).request_class is request_class


@pytest.mark.holds("Deadlines")
@pytest.mark.parametrize("milliseconds", [1, 250, 24 * 3600 * 1000])
def test_timeout(milliseconds: int) -> None:
    before = time.monotonic()
    deadline = read_options({b"request-timeout-ms": b"%d" % milliseconds}).deadline

    assert before <= deadline - milliseconds / 1000 <= time.monotonic()


@pytest.mark.holds("Deadlines")
@pytest.mark.parametrize("name", [b"request-timeout-ms", b"x-request-timeout-ms"])
def test_a_timeout_has_two_names(name: bytes) -> None:
    before = time.monotonic()
    assert before <= read_options({name: b"250"}).deadline - 0.25 <= time.monotonic()


@pytest.mark.holds("Deadlines")
def test_a_deadline_by_the_clients_clock() -> None:
    """As Baseten's client sends it."""
    before = time.monotonic()
    deadline = read_options({b"request-deadline-ms": b"%d" % (1000 * time.time() + 5000)}).deadline

    assert before + 4.9 < deadline < time.monotonic() + 5.1
    assert read_options({b"request-deadline-ms": b"0"}).deadline < before  # long ago


@pytest.mark.holds("Deadlines")
@pytest.mark.parametrize(
    "headers",
    [
        {b"request-timeout-ms": b"1000", b"x-request-timeout-ms": b"60000"},
        {b"request-timeout-ms": b"60000", b"x-request-timeout-ms": b"1000"},
        {b"request-deadline-ms": b"9" * 15, b"request-timeout-ms": b"1000"},
    ],
)
def test_the_earliest_deadline_counts(headers: dict[bytes, bytes]) -> None:
    assert 0 < read_options(headers).deadline - time.monotonic() <= 1


@pytest.mark.holds("Deadlines")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-request-timeout-ms", b"0"),
        (b"x-request-timeout-ms", b"soon"),
        (b"request-deadline-ms", b""),
        (b"request-deadline-ms", b"-1"),
        (b"request-deadline-ms", b"1.5e12"),
        (b"request-deadline-ms", b"2026-01-01T00:00:00Z"),
        (b"request-deadline-ms", b"9" * 16),
        (b"x-embedline-class", b""),
        (b"x-embedline-class", b"urgent"),
        (b"x-embedline-class", b"bulk, interactive"),
        (b"x-embedline-class", b"\xff\xfe"),
        (b"request-timeout-ms", b""),
        (b"request-timeout-ms", b"0"),
        (b"request-timeout-ms", b"-1"),
        (b"request-timeout-ms", b"+5"),
        (b"request-timeout-ms", b"1.5"),
        (b"request-timeout-ms", b"1e3"),
        (b"request-timeout-ms", b"0x10"),
        (b"request-timeout-ms", b"1_000"),
        (b"request-timeout-ms", b"nan"),
        (b"request-timeout-ms", b"soon"),
        (b"request-timeout-ms", "\N{ARABIC-INDIC DIGIT FIVE}".encode()),  # digits, but not ours
        (b"request-timeout-ms", b"\xb2"),
        (b"request-timeout-ms", b"86400001"),
        (b"request-timeout-ms", b"9" * 20),
        (b"request-timeout-ms", b"1" + b"0" * 5000),  # more digits than int() takes
        (b"request-timeout-ms", b"0" * 11 + b"1" + b"0" * 5000),
    ],
)
def test_nonsense_names_the_header(name: bytes, value: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_options(dict([(name, value)]))

    assert refused.value.param == name.decode()
    assert name.decode() in refused.value.message


@pytest.mark.holds("Requests and answers")
def test_a_compressed_body_is_not_read() -> None:
    assert read_options({b"content-encoding": b"Identity"}).accepts is Container.JSON
    for encoding in (b"gzip", b"zstd", b"identity, gzip", b""):
        with pytest.raises(UnsupportedMedia, match="content-encoding"):
            read_options({b"content-encoding": encoding})
