"""Other servers and Embedline under the same faults: a killed process, SIGTERM, broken bodies, idle clients, overload.

    python -m benchmarks.faults_beside_peers [--infinity FOLDER] [--quick] [--write]

The rows R1, R8, R12, R18 and R25 of docs/reliability.md. All servers serve all-MiniLM-L6-v2, one after the other, each
started anew for each fault. FOLDER is a virtual environment made by benchmarks/peers/make_env.sh.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.load import drive, requests_of
from benchmarks.measuring.processes import cpu_seconds, tree
from benchmarks.measuring.report import Report, parse
from benchmarks.measuring.servers import ROUTE, Recipe, RunningServer, embedline, infinity, plain, running
from benchmarks.measuring.texts import Corpus, Prose
from benchmarks.peers.models import minilm
from embedline.bench.load import Load, percentile, summarize

_NUM_CLIENTS = 64
_PATIENCE = 20.0  # seconds for an answer


@dataclass(frozen=True, slots=True)
class Setting:
    """What all faults share: the texts, and how long each is kept up."""

    queries: Corpus
    seconds: float
    num_bodies: int
    num_idle: int


Cells = dict[str, object]


def killed(server: RunningServer, setting: Setting) -> Cells:
    """R1: SIGKILL for the process of the server that has computed most."""
    began = time.perf_counter()
    victim = max(tree(server.process.pid), key=cpu_seconds)

    def kill() -> None:
        os.kill(victim, signal.SIGKILL)

    timer = threading.Timer(setting.seconds / 4, kill)
    timer.start()
    load = Load(concurrency=_NUM_CLIENTS, seconds=setting.seconds)
    phase = drive(server.port, requests_of(server.port, setting.queries, batch_size=1), load, patience=_PATIENCE)
    timer.join()
    after = [s.done for s in phase.samples if not s.failure and s.done > began + setting.seconds / 4 + 0.1]
    failures = Counter(sample.failure for sample in phase.samples if sample.failure)
    answered = sum(not sample.failure for sample in phase.samples)
    returned = f"{min(after) - began - setting.seconds / 4:.1f}" if after else "never"
    return {"answered": answered, "failed": dict(failures) or 0, "next answer after the kill, s": returned}


def terminated(server: RunningServer, setting: Setting) -> Cells:
    """R8: SIGTERM under clients that open a connection for each request, until nobody accepts any more."""
    body = json.dumps({"input": setting.queries.texts[0], "model": "m"}).encode()
    request = _head(len(body), b"connection: close\r\n") + body
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()

    def ask() -> None:
        while (outcome := _ask_once(server.port, request)) != "refused":
            with lock:
                outcomes[outcome] += 1

    threads = [threading.Thread(target=ask) for _ in range(_NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(setting.seconds / 4)
    began = time.perf_counter()
    server.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(Exception):
        server.process.wait(60)
    seconds = time.perf_counter() - began
    for thread in threads:
        thread.join()
    lost = sum(number for outcome, number in outcomes.items() if not outcome.startswith("answered"))
    return {"accepted": outcomes.total(), "lost": lost, "how": dict(outcomes), "exit after, s": f"{seconds:.1f}"}


def _ask_once(port: int, request: bytes) -> str:
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
    except OSError:
        return "refused"
    with connection:
        try:
            connection.sendall(request)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        except OSError as error:
            return type(error).__name__
    if not answer.startswith(b"HTTP/1.1 ") or not answer.endswith((b"}", b"]", b"\r\n\r\n")):
        return "cut off"
    return f"answered {answer[9:12].decode(errors='replace')}"


def broken_bodies(server: RunningServer, setting: Setting) -> Cells:
    """R12: bodies of a good request with bytes changed, cut out, doubled or replaced by what parsers trip over."""
    chosen = random.Random(12)
    good = json.dumps({"input": ["one text", "two"], "model": "m", "encoding_format": "float", "user": "x"}).encode()
    outcomes: Counter[str] = Counter()
    for _ in range(setting.num_bodies):
        body = _mutated(good, chosen)
        outcomes[_ask_once(server.port, _head(len(body), b"connection: close\r\n") + body)] += 1
    faults = sum(n for outcome, n in outcomes.items() if not outcome.startswith(("answered 2", "answered 4")))
    return {"bodies": setting.num_bodies, "5xx or no answer": faults, "how": dict(outcomes.most_common())}


_PIECES = (b"1e999", b"NaN", b"-0", b"[[[[", b'"\\ud800"', b"null", b"\xff\xfe", b"{}", b"9" * 400, b'"\\u0000"', b"[]")


def _mutated(body: bytes, chosen: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(chosen.randint(1, 3)):
        at = chosen.randrange(len(changed))
        to = min(len(changed), at + chosen.randint(1, 12))
        match chosen.randrange(4):
            case 0:
                changed[at] = chosen.randrange(256)
            case 1 if to - at < len(changed):
                del changed[at:to]
            case 2:
                changed[at:at] = changed[at:to]
            case _:
                changed[at:to] = chosen.choice(_PIECES)
    return bytes(changed)


def idle_clients(server: RunningServer, setting: Setting) -> Cells:
    """R18: clients that send nothing, half a head, half a body, or do not read a large answer; good ones beside."""
    quiet = _p99(server.port, setting, seconds=5)
    large = json.dumps({"input": ["a word"] * 256, "model": "m"}).encode()
    kinds = {
        "nothing sent": b"",
        "half a head": b"POST /v1/embeddings HTTP/1.1\r\nhost: 127.0.0.1\r\n",
        "half a body": _head(100) + b'{"input": ',
        "answer not read": (_head(len(large)) + large) * 8,
    }
    held = {
        kind: [_open(server.port, start) for _ in range(setting.num_idle // len(kinds))]
        for kind, start in kinds.items()
    }
    beside = _p99(server.port, setting, seconds=35)
    still = {kind: sum(_is_open(connection) for connection in those) for kind, those in held.items()}
    for those in held.values():
        for connection in those:
            connection.close()
    return {
        **{
            f"{kind}: open after 35 s": f"{number} of {setting.num_idle // len(kinds)}"
            for kind, number in still.items()
        },
        "p99 of others": f"{beside / quiet:.1f} x",
    }


def _open(port: int, start: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.send(start)
    return connection


def _is_open(connection: socket.socket) -> bool:
    """Whether the server still holds it. What came before its end is read away."""
    try:
        while connection.recv(1 << 20):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _p99(port: int, setting: Setting, *, seconds: float) -> float:
    load = Load(concurrency=4, seconds=seconds)
    requests = requests_of(port, setting.queries, batch_size=1)
    return percentile(summarize(drive(port, requests, load, patience=_PATIENCE)).latencies_ms, 99)


def overload(server: RunningServer, setting: Setting) -> Cells:
    """R25: twice the capacity, by clients that leave after a second. Once they say so in a header, once not."""
    silent = requests_of(server.port, setting.queries, batch_size=1)
    telling = [dataclasses.replace(request, payload=_with_deadline(request.payload)) for request in silent]
    quiet = summarize(drive(server.port, silent, Load(concurrency=_NUM_CLIENTS, seconds=setting.seconds / 2)))
    cells: Cells = {"capacity, requests/s": f"{quiet.requests_per_second:.0f}"}
    for how, requests in {"told": telling, "not told": silent}.items():
        load = Load(concurrency=4096, seconds=setting.seconds, rate=2 * quiet.requests_per_second, seed=25)
        phase = drive(server.port, requests, load, patience=1.0)
        in_time = sum(not sample.failure and sample.done - sample.due <= 1.0 for sample in phase.samples)
        cells[f"answered in time, of the capacity; deadline {how}"] = (
            f"{in_time / (quiet.requests_per_second * setting.seconds):.0%}"
        )
        cells[f"failed; deadline {how}"] = dict(Counter(sample.failure for sample in phase.samples if sample.failure))
    return cells


def _with_deadline(payload: bytes) -> bytes:
    head, end, body = payload.partition(b"\r\n\r\n")
    return head + b"\r\nrequest-timeout-ms: 1000" + end + body


def _head(length: int, more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n" % (
        ROUTE.encode(),
        length,
        more,
    )


FAULTS: dict[str, Callable[[RunningServer, Setting], Cells]] = {
    "R1: the process that computes is killed under load": killed,
    "R8: SIGTERM under load": terminated,
    "R12: broken bodies": broken_bodies,
    "R18: idle clients": idle_clients,
    "R25: twice the capacity, deadlines of 1 s": overload,
}


def recipes(environment: Path) -> list[Recipe]:
    """Those that can be started here."""
    model = minilm(Path())
    found = [embedline("--served-model-name", "m"), plain(model)]
    return [*found, infinity(environment, model)] if (environment / "bin/infinity_emb").is_file() else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infinity", type=Path, default=Path(".peers/infinity"), metavar="FOLDER")
    arguments = parse(parser)
    queries = Prose(minilm(Path()) / "tokenizer.json").uniform("query", 512, num_tokens=10)
    setting = Setting(queries, *((8.0, 200, 40) if arguments.quick else (20.0, 2000, 200)))
    report = Report("faults-beside-peers", "Embedline and other servers under the same faults")
    report.note(
        "R1: the server's process with the most CPU time is killed a quarter into the run; 64 requests in flight."
    )
    report.note("R8: lost are requests whose connection was accepted and that got no whole HTTP answer.")
    report.note(
        "R25: the capacity is that of the same server with 64 requests in flight. A client leaves after 1 s; "
        "where the deadline is told, the request has the header request-timeout-ms."
    )
    with tempfile.TemporaryDirectory() as cache:
        for title, fault in FAULTS.items():
            report.table(title)
            for recipe in recipes(arguments.infinity):
                with running(recipe, cache=Path(cache)) as server:
                    server.wait_for_answer(queries.texts[0])
                    report.row({"server": server.name, **fault(server, setting)})
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
