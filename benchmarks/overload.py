"""More work than the engine can do: what part of its capacity is answered in time, by the server and by the simulator.

Meanwhile somebody asks for its health, and processes count how late their event loops are.

    python -m benchmarks.overload [--seconds 20] [--write]

Whole processes with the fake engine, which takes 3 ms a batch and 1/12,000 s a token. Texts of about 245 tokens come at
random times. The simulator has the same engine, loads and budgets, and the server's own admission and scheduler.
"""

import argparse
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from batch_manager.messages import Policy
from benchmarks.measuring.load import drive, drive_together
from benchmarks.measuring.loop_lag import heartbeats, lag_percentile
from benchmarks.measuring.report import Report
from embedline.bench.load import Load, Sample, percentile
from embedline.bench.options import Target
from embedline.bench.requests import HttpRequest, post
from engine.types import EngineLimits
from server.requests.admission import WaitBudgets
from tests.batch_manager import simulator
from tests.server_e2e.expected import ids_of
from tests.server_e2e.running import Server, serving
from wire.vocabulary import RequestClass

TEXT = "the quick brown fox jumps over the lazy dog " * 27
NUM_TEXTS = 8192  # more than are in flight: equal ones would be computed once
TOKENS_PER_SECOND = 12_000.0
BATCH_SECONDS = 0.25  # the engine's longest batch
CAPACITY = TOKENS_PER_SECOND * (1 - simulator.FIXED_SECONDS / BATCH_SECONDS)  # tokens a second, in such batches
DEADLINE = 1.0  # seconds
BUDGET = 2.0  # seconds, of --interactive-max-wait
LIMITS = EngineLimits(
    max_num_tokens=16_384,
    max_num_seqs=1024,
    max_seqlen=256,
    tokens_per_second=simulator.TOKENS_PER_SECOND,
    max_batch_seconds=BATCH_SECONDS,
)
HEALTH_RATE = 50.0  # requests a second for /livez and /readyz
HEALTH = [HttpRequest(b"GET /%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path, 1) for path in (b"livez", b"readyz")]


class Figures(NamedTuple):
    """Of one run."""

    goodput: float  # part of the capacity that was answered in time
    p99: float  # seconds, of these answers


class Samples(NamedTuple):
    """Of one run of the server."""

    work: list[Sample]
    health: list[Sample]


def real(server: Server, *, times: float, deadline: float, seconds: float) -> tuple[Figures, Samples]:
    """The server under so many times its capacity, and all samples."""
    headers = () if deadline == math.inf else (f"request-timeout-ms: {1000 * deadline:.0f}",)
    target = Target("127.0.0.1", server.port, False, "")
    texts = [TEXT.replace("the quick", f"{number // 100} {number % 100}", 1) for number in range(NUM_TEXTS)]
    bodies = [json.dumps({"input": text, "model": "m", "encoding_format": "base64"}).encode() for text in texts]
    requests = [HttpRequest(post(target, "/v1/embeddings", body, headers=headers), 1) for body in bodies]
    num_tokens = len(ids_of(TEXT))
    rate = times * CAPACITY / num_tokens
    drive(server.port, requests, Load(concurrency=4000, seconds=2.0, rate=rate, seed=1))
    load = Load(concurrency=4000, seconds=seconds, rate=rate, seed=2)
    looks = Load(concurrency=1000, seconds=seconds, rate=HEALTH_RATE, seed=3)
    phase, health = drive_together(server.port, [(requests, load), (HEALTH, looks)])
    good = [one for one in phase.samples if not one.failure and one.done - one.due <= deadline]
    in_time = [one for one in good if one.done <= phase.began + seconds]
    goodput = num_tokens * len(in_time) / (CAPACITY * seconds)
    figures = Figures(goodput, percentile(sorted(one.done - one.due for one in good), 99))
    return figures, Samples(phase.samples, health.samples)


def simulated(*, times: float, deadline: float, seconds: float) -> Figures:
    """The same in virtual time."""
    run = simulator.Simulator(
        Policy(),
        LIMITS,
        seed=2,
        speeds=(TOKENS_PER_SECOND / simulator.TOKENS_PER_SECOND,),
        budgets=WaitBudgets(BUDGET, 300.0),
    )
    seqlen = len(ids_of(TEXT))
    load = simulator.Load(RequestClass.INTERACTIVE, times * CAPACITY, 1, (seqlen, seqlen), timeout=deadline)
    run.run([load], seconds)
    outcome = run.outcomes[RequestClass.INTERACTIVE]
    return Figures(outcome.tokens / (CAPACITY * seconds), outcome.percentile(0.99))


def row(server: Server, *, times: float, deadline: float, seconds: float) -> dict[str, object]:
    """One load."""
    before = heartbeats(server.request("GET", "/metrics").body.decode())
    seen, (samples, health) = real(server, times=times, deadline=deadline, seconds=seconds)
    after = heartbeats(server.request("GET", "/metrics").body.decode())
    expected = simulated(times=times, deadline=deadline, seconds=seconds)
    refused = sorted(1000 * (one.done - one.due) for one in samples if one.failure == "HTTP 429")
    others = {one.failure for one in samples} - {"", "HTTP 429"}
    late = sum(one.failure == "HTTP 504" for one in samples)
    lag = percentile(sorted(1000 * (one.sent - one.due) for one in samples), 99)
    looks = sorted(1000 * (one.done - one.due) for one in health)
    return {
        "load": f"{times:g}x",
        "deadline s": f"{deadline:g}" if deadline < math.inf else "none",
        "goodput": f"{seen.goodput:.3f}",
        "simulated": f"{expected.goodput:.3f}",
        "p99 s": f"{seen.p99:.2f}",
        "p99 simulated s": f"{expected.p99:.2f}",
        "429": len(refused),
        "429 p99 ms": f"{percentile(refused, 99):.1f}",
        "504": late,
        "other failures": ", ".join(sorted(others - {"HTTP 504"})) or "none",
        "generator late p99 ms": f"{lag:.1f}",
        "health p99 / max ms": f"{percentile(looks, 99):.1f} / {looks[-1]:.1f}",
        "health failed": sum(bool(one.failure) for one in health),
        "loops late p99 / max ms": " / ".join(
            f"{1000 * lag_percentile(before, after, percent):.1f}" for percent in (99, 100)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    report = Report("overload", "Overload: goodput of whole processes on the fake engine, and of the simulator")
    flags = (
        *("--engine", "fake", "--fake-tokens-per-second", f"{TOKENS_PER_SECOND:g}"),
        *("--fake-cost-ms", f"{1000 * simulator.FIXED_SECONDS:g}", "--interactive-max-wait", f"{BUDGET:g}"),
        *("--request-log", "off"),
    )
    with TemporaryDirectory() as folder, serving(*flags, folder=Path(folder)) as server:
        for deadline in (DEADLINE, math.inf):
            for times in (2, 5, 10):
                report.row(row(server, times=times, deadline=deadline, seconds=arguments.seconds))
    report.note(
        f"Goodput: tokens answered in time over {CAPACITY:.0f} a second, which the engine computes in full batches."
    )
    report.note(f"Admission: --interactive-max-wait {BUDGET:g}. The client runs on the same machine.")
    report.note(
        f"Health: /livez and /readyz, {HEALTH_RATE:g} a second on the same frontend, so what they wait for is its "
        "event loop. Loops late: heartbeats of all processes, two a second each, rounded up to a bucket of /metrics."
    )
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
