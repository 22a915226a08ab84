"""What work that nobody waits for costs: async requests accepted a second, and queries beside a batch, on a CPU.

    python -m benchmarks.jobs [--quick] [--write]

Accepts: the fake engine, bodies of 4 KiB, each kept on disk (fsync) before it is answered. Queries: all-MiniLM-L6-v2 at
its defaults; queries of 10 tokens come at random times, ten a second on average, while the same bulk texts are sent
by 64 clients with `x-embedline-class: bulk`, or lie in a batch whose lines the server takes itself, 64 at a time.
"""

import argparse
import contextlib
import http.client
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.engines.__main__ import MODEL
from benchmarks.measuring.load import drive, measure_together, requests_of
from benchmarks.measuring.report import PACKAGES, Report, parse
from benchmarks.measuring.servers import RunningServer, embedline, running
from benchmarks.measuring.texts import Corpus, Prose
from embedline.bench.load import Load, percentile
from embedline.bench.options import Options, parse_url
from embedline.bench.requests import HttpRequest, post, prepare
from engine.store.model_source import resolve

BODY_BYTES = 4096
MIN_ACCEPTS, MAX_RATIO = 2000.0, 1.1  # what is asked for
_CONNECTIONS = (16, 64, 256)
_QUERIES_A_SECOND = 10.0
_MAX_QUERIES = 1000  # in flight: more than ever are
_TEXTS_A_LINE, _CLIENTS = 32, 64
_BOUNDARY = "batch-of-a-benchmark"
NOTES = (
    f"Holds: at least {MIN_ACCEPTS:.0f} durable accepts a second; p99 of queries beside a batch at most {MAX_RATIO} "
    "times that beside the same bulk work by header.",
    "Accepted requests are also run while others are accepted, by the fake engine, which costs next to nothing.",
    "The generator runs on the same cores. The disk is the machine's own; its fsync may be quicker than yours.",
    "Not shown: Redis, webhooks, a GPU, other machines and models.",
)


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[RunningServer]:
    """A server with a folder for its jobs."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        recipe = embedline("--jobs", f"{folder}/jobs", "--jobs-quota", str(8 << 30), "--request-log", "off", *flags)
        with running(recipe, cache=Path(folder, "cache")) as server:
            yield server


def accepts(report: Report, *, seconds: float) -> None:
    """POST /async_predict, each connection one request after the other."""
    with serving("--engine", "fake", "--model-id", MODEL) as server:
        server.wait_for_answer("hello")
        target = parse_url(f"127.0.0.1:{server.port}")
        empty = len(_async_body(""))
        body = _async_body("a" * (BODY_BYTES - empty))
        requests = [HttpRequest(post(target, "/async_predict", body), 1)]
        drive(server.port, requests, Load(concurrency=16, seconds=1.0))
        for connections in _CONNECTIONS:
            phase = drive(server.port, requests, Load(concurrency=connections, seconds=seconds))
            ms = sorted(1000 * (one.done - one.sent) for one in phase.samples if not one.failure)
            report.row(
                {
                    "connections": connections,
                    "accepts/s": f"{len(ms) / seconds:.0f}",
                    "p50 ms": f"{percentile(ms, 50):.1f}",
                    "p99 ms": f"{percentile(ms, 99):.1f}",
                    "others": len(phase.samples) - len(ms),
                }
            )


def _async_body(text: str) -> bytes:
    return json.dumps({"model_input": {"input": text, "model": "m"}, "max_time_in_queue_seconds": 3600}).encode()


class Batch:
    """An OpenAI batch that runs within the block."""

    def __init__(self, port: int, corpus: Corpus) -> None:
        self._port = port
        self._lines = "".join(
            json.dumps({"custom_id": str(first), "method": "POST", "url": "/v1/embeddings", "body": body}) + "\n"
            for first in range(0, len(corpus.texts), _TEXTS_A_LINE)
            for body in ({"model": "m", "input": list(corpus.texts[first : first + _TEXTS_A_LINE])},)
        ).encode()

    def __enter__(self) -> None:
        head = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{_BOUNDARY}\r\n'
        head += 'content-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        form = head.encode() + self._lines + f"\r\n--{_BOUNDARY}--\r\n".encode()
        file = self._ask("POST", "/v1/files", form, f"multipart/form-data; boundary={_BOUNDARY}")
        asked = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        self._id = self._ask("POST", "/v1/batches", json.dumps(asked).encode())["id"]

    def __exit__(self, *_: object) -> None:
        counts = self._ask("GET", f"/v1/batches/{self._id}")["request_counts"]
        assert not counts["failed"], counts
        assert 0 < counts["completed"] < counts["total"], counts
        self._ask("POST", f"/v1/batches/{self._id}/cancel")

    def texts(self) -> int:
        """Answered so far."""
        return int(self._ask("GET", f"/v1/batches/{self._id}")["request_counts"]["completed"]) * _TEXTS_A_LINE

    def _ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> dict[str, Any]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request(method, path, body or None, {"content-type": kind} if body else {})
            answer = connection.getresponse()
            found: dict[str, Any] = json.loads(answer.read())
            assert answer.status == 200, found
            return found


class Beside:
    """Queries of one server, beside what else it has to do."""

    def __init__(self, server: RunningServer, queries: Corpus, bulk: Corpus, *, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._queries = requests_of(server.port, queries, batch_size=1)
        options = Options(url=f"127.0.0.1:{server.port}", batch_size=_TEXTS_A_LINE, model="m", request_class="bulk")
        self._bulk = prepare(options, parse_url(options.url), bulk.texts)
        self._corpus = bulk
        self._rounds = 0

    def alone(self) -> tuple[list[float], float]:
        """Latencies of the queries in ms, and texts a second of the other work."""
        (queries,) = measure_together(self._server.process.pid, self._server.port, [self._load()])
        return queries.summary.latencies_ms, 0.0

    def header(self) -> tuple[list[float], float]:
        """Clients send the other work as bulk."""
        bulk = (self._bulk, Load(concurrency=_CLIENTS, seconds=self._seconds))
        queries, beside = measure_together(self._server.process.pid, self._server.port, [self._load(), bulk])
        return queries.summary.latencies_ms, beside.summary.texts_per_second

    def batch(self) -> tuple[list[float], float]:
        """The server takes it from a batch."""
        batch = Batch(self._server.port, self._corpus)
        with batch:
            drive(self._server.port, self._queries, Load(concurrency=1, num_requests=20))  # until lines are taken
            before, began = batch.texts(), time.perf_counter()
            (queries,) = measure_together(self._server.process.pid, self._server.port, [self._load()])
            rate = (batch.texts() - before) / (time.perf_counter() - began)
        return queries.summary.latencies_ms, rate

    def _load(self) -> tuple[list[HttpRequest], Load]:
        self._rounds += 1
        return self._queries, Load(
            concurrency=_MAX_QUERIES, seconds=self._seconds, rate=_QUERIES_A_SECOND, seed=self._rounds // 3
        )


def queries(report: Report, corpora: tuple[Corpus, Corpus], *, rounds: int, seconds: float) -> None:
    """The three loads in turn, and all rounds of each together."""
    with serving("--model-id", MODEL) as server:
        server.wait_for_answer("hello")
        beside = Beside(server, *corpora, seconds=seconds)
        loads = {"queries alone": beside.alone, "beside bulk by header": beside.header, "beside a batch": beside.batch}
        beside.header()  # warm
        found: dict[str, list[float]] = {name: [] for name in loads}
        for number in range(1, rounds + 1):
            for name, run in loads.items():
                ms, rate = run()
                found[name] += ms
                report.row({"round": number, "load": name, **_cells(ms), "other texts/s": f"{rate:.0f}"})
    report.table("All rounds")
    p99 = {name: percentile(sorted(ms), 99) for name, ms in found.items()}
    for name, ms in found.items():
        report.row(
            {"load": name, **_cells(ms), "p99 against the header": f"{p99[name] / p99['beside bulk by header']:.2f}"}
        )


def _cells(ms: list[float]) -> dict[str, object]:
    ordered = sorted(ms)
    return {"queries": len(ms)} | {f"p{share} ms": f"{percentile(ordered, share):.1f}" for share in (50, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    arguments = parse(parser)
    rounds, seconds = (1, 6.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    prose = Prose(resolve(MODEL).path / "tokenizer.json")
    corpora = prose.uniform("query", 512, num_tokens=10), prose.mixed(32_768)
    report = Report("jobs", "Async requests and batches", packages=(*PACKAGES, "openvino"))
    for note in (*NOTES, f"Bulk: {corpora[1]}. Queries: {corpora[0]}."):
        report.note(note)
    report.table("Async requests accepted")
    accepts(report, seconds=min(seconds, 8.0))
    report.table("Queries")
    queries(report, corpora, rounds=rounds, seconds=seconds)
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
