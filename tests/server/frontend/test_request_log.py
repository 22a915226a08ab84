"""The request log: what a line says, what it never says, and that no reader can hold up the event loop."""

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from server.dialects.route import Route
from server.dialects.table import ROUTES
from server.frontend.request_log import Logged, RequestLog
from server.requests.work import Trace
from tests.server.edge import Called, Edge, call, good_body, state_with_everything
from wire.metrics import Recorder

PATH = "/v1/embeddings"
DROPPED = "embedline_log_lines_dropped_total"


def written(
    tmp_path: Path,
    use: Callable[[RequestLog], Awaitable[None]],
    *,
    logged: Logged = Logged.ALL,
    sample_rate: float = 1.0,
) -> list[dict[str, Any]]:
    """The lines of a log in a file, after its orderly end."""

    async def test() -> None:
        with (tmp_path / "log").open("wb") as file:
            log = RequestLog(logged, Recorder(), sample_rate=sample_rate, fd=file.fileno())
            await use(log)
            await log.close()

    asyncio.run(test())
    return [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]


def writes(*traces: Trace) -> Callable[[RequestLog], Awaitable[None]]:
    async def use(log: RequestLog) -> None:
        for trace in traces:
            log.write(trace)

    return use


@pytest.mark.holds("API keys", "Truncation", "The request log")
def test_a_line_says_everything(tmp_path: Path) -> None:
    trace = Trace(
        method="POST",
        route=PATH,
        request_id="abc-1",
        status=200,
        stage="respond",
        key="team-a",
        model="the-model",
        request_class="bulk",
        encoding="bytes",
        num_items=2,
        num_characters=9,
        num_tokens=8,
        num_truncated=1,
        num_bytes=64,
        read_seconds=0.0000123,
        tokenize_seconds=0.0011,
        queue_seconds=0.25,
        compute_seconds=1.5,
        respond_seconds=0.00098765,
        total_seconds=1.7600004,
    )
    (line,) = written(tmp_path, writes(trace))

    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "info",
        "request_id": "abc-1",
        "key": "team-a",
        "method": "POST",
        "route": PATH,
        "status": 200,
        "error": "",
        "stage": "respond",
        "model": "the-model",
        "class": "bulk",
        "items": 2,
        "characters": 9,
        "tokens": 8,
        "truncated": 1,
        "encoding": "bytes",
        "bytes": 64,
        "read_ms": 0.012,
        "tokenize_ms": 1.1,
        "queue_ms": 250,
        "compute_ms": 1500,
        "respond_ms": 0.988,
        "total_ms": 1760,
    }


@pytest.mark.holds("The request log")
@pytest.mark.parametrize(
    ("logged", "statuses"), [(Logged.ALL, [200, 400, 499, 503]), (Logged.ERRORS, [400, 499, 503]), (Logged.OFF, [])]
)
def test_which_requests_get_a_line(tmp_path: Path, logged: Logged, statuses: list[int]) -> None:
    traces = [Trace(route=PATH, status=status) for status in (200, 400, 499, 503)]

    assert [line["status"] for line in written(tmp_path, writes(*traces), logged=logged)] == statuses


@pytest.mark.holds("The request log")
@pytest.mark.parametrize(("sample_rate", "least", "most"), [(0, 0, 0), (0.25, 400, 600), (1, 2000, 2000)])
def test_a_sample_of_what_was_answered_and_all_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_rate: float, least: int, most: int
) -> None:
    monkeypatch.setattr("server.frontend.request_log.random", random.Random(3))
    traces = [Trace(route=PATH, status=200)] * 2000 + [Trace(route=PATH, status=status) for status in (400, 499, 503)]

    statuses = Counter(line["status"] for line in written(tmp_path, writes(*traces), sample_rate=sample_rate))

    assert least <= statuses.pop(200, 0) <= most
    assert statuses == {400: 1, 499: 1, 503: 1}


@pytest.mark.holds("The request log")
def test_a_storm_of_refusals_gets_some_lines_for_each_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([7.0] * 1002 + [8.5] * 2)
    clock = SimpleNamespace(monotonic=lambda: next(seconds), time=time.time, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr("server.frontend.request_log.time", clock)
    storm = [Trace(route=PATH, status=429, reason="wait", num_items=index) for index in range(1000)]
    others = [Trace(route=PATH, status=429, reason="concurrency"), Trace(route=PATH, status=400, reason="invalid")]
    later = [storm[0], storm[0]]

    lines = written(tmp_path, writes(*storm, *others, *later))

    assert [line["items"] for line in lines[:100]] == list(range(100))
    assert [line.get("left_out") for line in lines] == [*[None] * 100, None, None, 900, None]
    assert [line["status"] for line in lines[100:]] == [429, 400, 429, 429]
    assert [line["reason"] for line in lines[99:103]] == ["wait", "concurrency", "invalid", "wait"]


def test_levels_by_status(tmp_path: Path) -> None:
    traces = [Trace(route=PATH, status=status) for status in (200, 429, 499, 500, 503)]
    lines = written(tmp_path, writes(*traces))

    assert [line["level"] for line in lines] == ["info", "warning", "warning", "error", "error"]


@pytest.mark.holds("The request log")
@pytest.mark.parametrize("route", ["/livez", "/readyz", "/health", "/metrics"])
def test_what_is_polled_gets_a_line_only_where_it_fails(tmp_path: Path, route: str) -> None:
    lines = written(tmp_path, writes(Trace(route=route, status=200), Trace(route=route, status=503)))

    assert [line["status"] for line in lines] == [503]


@pytest.mark.holds("The request log")
def test_answered_refused_and_aborted_requests_at_the_edge_without_their_texts(tmp_path: Path) -> None:
    async def use(log: RequestLog) -> None:
        edge = Edge()
        edge.change(finished=log.write)
        await call(edge.app, "POST", PATH, b'{"input":"secret text"}', {"x-request-id": "one"})
        await call(edge.app, "POST", PATH, b'{"input":"secret text","dimensions":"secret"}', {"x-request-id": "two"})
        await call(edge.app, "POST", PATH, [])  # leaves before its body
        await call(edge.app, "GET", "/secret/path?secret", b"", {"x-request-id": "secret\tid"})
        edge.managers.gate = asyncio.Event()
        waiting = asyncio.create_task(call(edge.app, "POST", PATH, b'{"input":"secret text"}'))
        while len(edge.managers.submitted) < 2:
            await edge.managers.arrivals.get()
        waiting.cancel()
        await asyncio.wait([waiting])

    lines = written(tmp_path, use)

    assert [(line["status"], line["error"], line["stage"], line["route"]) for line in lines] == [
        (200, "", "respond", PATH),
        (400, "InvalidRequest", "read", PATH),
        (499, "ClientLeft", "read", PATH),
        (404, "NoSuchRoute", "read", "other"),
        (499, "ClientLeft", "queue", PATH),
    ]
    assert (lines[1]["param"], lines[1]["problem"], "param" in lines[0]) == ("dimensions", "wrong_type", False)
    assert [line["request_id"] for line in lines[:2]] == ["one", "two"]
    assert lines[0]["total_ms"] >= lines[0]["tokenize_ms"] > 0
    assert (lines[0]["items"], lines[0]["characters"], lines[0]["tokens"]) == (1, 11, 11)
    assert b"secret" not in (tmp_path / "log").read_bytes()


WRONG: tuple[Any, ...] = ("secret", ["secret", 5], [["secret", {"secret": 1}]], {"secret": "a"}, -1, 1.5, [])
SECRETS = (
    *(b"secret", b'{"secret', b'{"secret":NaN}', rb'{"secret":"\ud800"}', b'{"input":{"secret":NaN}}', b'["secret"]'),
    *(b'{"\xffsecret":1}', b'{"model":"secret"}', b'{"instances":[{"secret":NaN}]}'),
)


@pytest.mark.holds("Errors", "The request log")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_what_was_wrong_is_named_and_only_as_we_name_it(
    route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each field of each route with values that it may not have; names, texts and headers of a client."""
    monkeypatch.setattr("wire.process._MOST_A_SECOND", 1 << 20)
    fields = {field.encode_name for body in route.bodies for field in msgspec.structs.fields(body)} | {"chat_template"}
    bodies = [json.dumps({**route.example, name: value}).encode() for name in sorted(fields) for value in WRONG]
    bodies += SECRETS
    answers = list[Called]()

    async def use(log: RequestLog) -> None:
        edge = Edge(loaded=state_with_everything())
        edge.change(finished=log.write)
        answers.extend([await call(edge.app, "POST", route.path, body) for body in bodies])
        for header in ("request-timeout-ms", "x-embedline-class", "content-encoding", "request-deadline-ms"):
            answers.append(await call(edge.app, "POST", route.path, good_body(route.path), {header: "secret"}))

    lines = written(tmp_path, use)

    assert b"secret" not in (tmp_path / "log").read_bytes()
    for answer, line in zip(answers, lines, strict=True):
        error = json.loads(answer.body).get("error") if line["status"] >= 400 else None
        assert (line["status"] >= 400) == ("reason" in line)
        param = (error.get("param") if isinstance(error, dict) else None) or ""
        assert re.sub(r"\[\d+\]", "[]", param).partition("secret")[0].rstrip(".") in ("", line.get("param"))
        if line.get("param", "model") not in ("model", "lora_path"):  # of these the reason says it
            assert line.get("problem"), answer.body


@pytest.mark.holds("Log lines cannot be forged", "The request log")
def test_names_can_not_forge_a_line(tmp_path: Path) -> None:
    forged = 'x"}\n{"level":"info"\x1b[2J\x00\x7f'
    (line,) = written(tmp_path, writes(Trace(route=PATH, status=200, key=forged, model=forged)))

    assert (line["key"], line["model"]) == (forged, forged)
    assert len((tmp_path / "log").read_bytes().splitlines()) == 1


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, Callable[[], None], list[dict[str, Any]]]]:
    """The end to write to, what begins to read the other one, and the lines that came, once the block has ended."""
    read_end, write_end = os.pipe()
    received: list[dict[str, Any]] = []

    def read_all() -> None:
        with open(read_end, "rb") as file:
            received.extend(map(json.loads, file))

    reader = threading.Thread(target=read_all)
    yield write_end, reader.start, received
    os.close(write_end)
    reader.join()


def counted(recorder: Recorder) -> float:
    return float(sum(value for name, *_, value in recorder.drain()["counts"] if name == DROPPED))


@pytest.mark.holds("A slow log reader never blocks a request", "The request log")
async def test_a_reader_that_does_not_read_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    """The pipe and 8 MiB fill; the rest is dropped and counted, and said once. What was kept is there in order."""
    recorder, num_written = Recorder(), 0
    trace = Trace(route=PATH, status=200, model="m" * 1000)
    with caplog.at_level(logging.WARNING), pipe() as (write_end, begin_to_read, received):
        log = RequestLog(Logged.ALL, recorder, fd=write_end)
        while not counted(recorder):
            for _ in range(1000):
                trace.num_items = num_written
                log.write(trace)
                num_written += 1
        begin_to_read()
        await log.close(30)

    numbers = [line["items"] for line in received]
    assert 5000 < len(numbers) < num_written
    assert numbers == sorted(numbers)
    assert len([record for record in caplog.records if "dropped" in record.message]) == 1


@pytest.mark.parametrize("is_full", [False, True], ids=["the reader has gone", "the disk is full"])
async def test_what_takes_no_lines_costs_nothing_else(is_full: bool, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    read_end, write_end = os.pipe()
    os.close(read_end)
    fd = os.open("/dev/full", os.O_WRONLY) if is_full else write_end
    with caplog.at_level(logging.WARNING):
        log = RequestLog(Logged.ALL, recorder, fd=fd)
        for _ in range(2000):
            log.write(Trace(route=PATH, status=200))
        await log.close()
    for each in {fd, write_end}:
        os.close(each)
    assert counted(recorder) == (2000 if is_full else 0)
    if not is_full:
        assert caplog.messages == ["the reader of the request log has closed it; no more lines are written"]


@pytest.mark.parametrize("num_logs", [1, 2], ids=["a descriptor that does not block", "two processes"])
async def test_every_line_comes_whole(num_logs: int) -> None:
    """A pipe takes a write of at most PIPE_BUF bytes whole; lines are never cut over two."""
    with pipe() as (write_end, begin_to_read, received):
        os.set_blocking(write_end, num_logs > 1)
        logs = [RequestLog(Logged.ALL, Recorder(), fd=write_end) for _ in range(num_logs)]
        for number in range(3000):
            for log in logs:
                log.write(Trace(route=PATH, status=200, num_items=number))
        begin_to_read()
        for log in logs:
            await log.close(30)
    numbers = [line["items"] for line in received]
    assert (numbers if num_logs == 1 else sorted(numbers)) == sorted([*range(3000)] * num_logs)


async def test_lines_leave_without_a_close_and_without_more_requests() -> None:
    read_end, write_end = os.pipe()
    log = RequestLog(Logged.ALL, Recorder(), fd=write_end)
    log.write(Trace(route=PATH, status=200))
    line = await asyncio.to_thread(os.read, read_end, 4096)
    await log.close()
    assert json.loads(line)["status"] == 200
    os.close(read_end)
    os.close(write_end)
