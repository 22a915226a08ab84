"""What headers say of a request, and that nonsense in them is the client's fault and never ours."""

import math
import time

import pytest

from server.dialects.row_answers import Container
from server.http.request import read_options
from server.requests.errors import InvalidRequest
from wire.vocabulary import RequestClass


@pytest.mark.holds("Deadlines")
def test_without_headers_there_are_no_options() -> None:
    options = read_options({b"host": b"a", b"user-agent": b"b"})

    assert (options.request_class, options.deadline, options.accepts) == (None, math.inf, Container.JSON)


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize(
    ("accept", "container"),
    [
        (b"application/octet-stream", Container.RAW),
        (b"Application/Octet-Stream", Container.RAW),
        (b"application/octet-stream;q=0.9, application/json;q=0.1", Container.RAW),
        (b"application/octet-stream;q=0.1, application/json;q=0.9", Container.JSON),
        (b"application/json;q=0.5, application/octet-stream", Container.RAW),
        (b"application/octet-stream, application/json", Container.RAW),
        (b"application/json, application/octet-stream", Container.JSON),
        (b"text/plain, application/octet-stream", Container.RAW),
        (b"*/*, application/octet-stream", Container.RAW),
        (b"application/*;q=0.9, application/octet-stream;q=0.2", Container.JSON),
        (b"application/octet-stream;q=0", Container.JSON),
        (b"application/octet-stream;q=0, application/x-npy;q=0.001", Container.NPY),
        (b"application/octet-stream; charset=x ; q=0.5 ,application/npy;q=0.4", Container.RAW),
        (b"application/octet-stream;q=nan", Container.JSON),
        (b"application/octet-stream;q=1e9, application/json", Container.JSON),
        (b"application/json", Container.JSON),
        (b"application/json, application/msgpack", Container.MSGPACK),  # as baseten-performance-client sends it
        (b"application/json, application/msgpack;q=0.9", Container.JSON),
        (b"application/x-msgpack", Container.MSGPACK),
        (b"text/html,application/xhtml+xml,*/*;q=0.8", Container.JSON),
        (b"*/*", Container.JSON),
        (b"", Container.JSON),
        (b",;,;q=,", Container.JSON),
        (b"\xff\xfe;q=1", Container.JSON),
    ],
)
def test_accept(accept: bytes, container: Container) -> None:
    assert read_options({b"accept": accept}).accepts is container


@pytest.mark.holds("Two classes of work")
@pytest.mark.parametrize(
    ("value", "request_class"),
    [(b"interactive", RequestClass.INTERACTIVE), (b"bulk", RequestClass.BULK), (b"Bulk", RequestClass.BULK)],
)
def test_class(value: bytes, request_class: RequestClass) -> None:
    assert read_options({b"x-embedline-class": value}).request_class is request_class


@pytest.mark.holds("Deadlines")
@pytest.mark.parametrize("name", [b"request-timeout-ms", b"x-request-timeout-ms"])
@pytest.mark.parametrize("milliseconds", [1, 250, 24 * 3600 * 1000])
def test_timeout(name: bytes, milliseconds: int) -> None:
    before = time.monotonic()
    deadline = read_options({name: b"%d" % milliseconds}).deadline

    assert before <= deadline - milliseconds / 1000 <= time.monotonic()


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
    before = time.monotonic()
    assert before <= read_options(headers).deadline - 1 <= time.monotonic()


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
