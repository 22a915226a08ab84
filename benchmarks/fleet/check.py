"""The simulation beside three real servers: the same requests at the same times, in turn to each server.

    python -m benchmarks.fleet.check [--seconds 40] [--write]

Whole servers with the fake engine, so that the cost of a batch is known and the same on both sides. What differs is
what is checked: HTTP, tokenizing, processes, and three servers and a client on one machine.
"""

import argparse
import asyncio
import contextlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.fleet import traces
from benchmarks.fleet.autoscalers import Rules, Scaler
from benchmarks.fleet.figures import percentile
from benchmarks.fleet.fleet import BALANCERS, Fleet
from benchmarks.fleet.machines import Machine
from benchmarks.fleet.traces import HOUR, Stream, Trace
from benchmarks.measuring.report import Report
from embedline.bench.connection import ConnectionPool
from embedline.bench.options import Target, parse_url
from embedline.bench.requests import post
from embedline.bench.run import run_on_loop
from tests.server_e2e.expected import ids_of
from tests.server_e2e.running import serving

NUM_SERVERS = 3
TOLERANCE = 0.15
PATIENCE = 120.0  # seconds for an answer
MACHINE = Machine(
    name="fake",
    tokens_per_second=20_000,
    batch_seconds=0.01,
    start_seconds=0,
    price_per_hour=0,
    source="the fake engine's own flags",
)
FLAGS = (
    *("--engine", "fake", "--fake-dim", "32", "--request-log", "off"),
    *(
        "--fake-tokens-per-second",
        f"{MACHINE.tokens_per_second:g}",
        "--fake-cost-ms",
        f"{1000 * MACHINE.batch_seconds:g}",
    ),
)
LOADS = (0.3, 0.6, 1.3)  # times what three engines compute without the fixed cost of batches
_NUM_MARKS = 4  # tokens of a text besides its words: two numbers, and the model's own two


def requests_of(seconds: float, load: float) -> Trace:
    """1 to 2,048 texts a request, of about 30 tokens each; all texts of one request have the same number."""
    rate = load * NUM_SERVERS * MACHINE.tokens_per_second
    stream = Stream(tokens_per_second=rate, max_texts=traces.MAX_TEXTS, tokens_per_text=30, peak_hour=0, swing=0)
    trace = traces.draw((stream,), seed=2, hours=seconds / HOUR)
    return Trace(trace.at, trace.texts, trace.texts * np.maximum(trace.tokens // trace.texts, _NUM_MARKS + 1))


def body_of(number: int, num_texts: int, num_tokens: int) -> bytes:
    """A request whose texts have as many tokens, and that no other is equal to."""
    words = "fox " * (num_tokens // num_texts - _NUM_MARKS)
    texts = [f"{(number + at // 100) % 100} {at % 100} {words}" for at in range(num_texts)]
    assert len(ids_of(texts[0])) == num_tokens // num_texts
    return json.dumps({"input": texts, "model": "m", "encoding_format": "base64"}).encode()


async def replay(targets: Sequence[Target], trace: Trace, bodies: Sequence[bytes]) -> list[float]:
    """Latency of each request in seconds, from when it was due; inf where there was no 200."""
    pools = [ConnectionPool(target, patience=PATIENCE) for target in targets]
    began = time.perf_counter()

    async def send(number: int) -> float:
        due, server = began + float(trace.at[number]), number % len(targets)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        connection = await pools[server].take()
        answer = await connection.ask(post(targets[server], "/v1/embeddings", bodies[number]))
        pools[server].give_back(connection)
        return time.perf_counter() - due if answer.status == 200 else math.inf

    try:
        return list(await asyncio.gather(*map(send, range(len(trace)))))
    finally:
        for pool in pools:
            pool.close()


def measured(target: Target) -> Machine:
    """With what HTTP and tokenizing add, out of lone requests of one text and of many on an idle server."""
    host = []
    for num_texts, num_times in ((1, 20), (512, 5)):
        size = np.array([num_texts])
        trace = Trace(np.zeros(1), size, size * 30)
        bodies = [body_of(number, num_texts, num_texts * 30) for number in range(num_times)]
        real = [run_on_loop(replay([target], trace, [body]))[0] for body in bodies]
        host.append(float(np.median(real)) - simulated(trace, MACHINE)[0])
    per_token = max(host[1] - host[0], 1e-9) / (30 * 511)
    return replace(MACHINE, request_seconds=max(0.0, host[0]), tokenized_per_second=1 / per_token)


def simulated(trace: Trace, machine: Machine) -> list[float]:
    """The same of the simulation."""
    fleet = Fleet(trace, machine, Scaler(Rules(), None), balancer=BALANCERS["round-robin"], num_first=NUM_SERVERS)
    return fleet.run().latencies


def summary(trace: Trace, latencies: Sequence[float]) -> dict[str, float]:
    """Throughput until the last answer, and percentiles."""
    found = np.array(latencies)
    good = np.isfinite(found)
    seconds = float((trace.at + found)[good].max())
    of = {f"p{percent} s": percentile(found, percent) for percent in (50, 99)}
    return {"tokens/s": float(trace.tokens[good].sum()) / seconds, **of, "refused": float((~good).sum())}


def row(report: Report, load: float, trace: Trace, targets: Sequence[Target], machine: Machine) -> bool:
    """One load on both sides; whether throughput and p50 agree."""
    sizes = zip(trace.texts.tolist(), trace.tokens.tolist(), strict=True)
    bodies = [body_of(number, texts, tokens) for number, (texts, tokens) in enumerate(sizes)]
    real = summary(trace, run_on_loop(replay(targets, trace, bodies)))
    expected = summary(trace, simulated(trace, machine))
    cells: dict[str, object] = {"load": load, "requests": len(trace)}
    for name, value in real.items():
        cells |= {f"{name} real": f"{value:,.3g}", f"{name} simulated": f"{expected[name]:,.3g}"}
        if name != "refused":
            cells[f"{name} off"] = f"{expected[name] / value - 1:+.1%}"
    report.row(cells, {"load": load, "requests": len(trace), "real": real, "simulated": expected})
    return all(abs(expected[name] / real[name] - 1) <= TOLERANCE for name in ("tokens/s", "p50 s"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.check", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each load")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    report = Report("fleet_check", "The simulation of fleets beside three real servers")
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(NUM_SERVERS):
            folder = Path(stack.enter_context(TemporaryDirectory()))
            servers.append(stack.enter_context(serving(*FLAGS, folder=folder)))
        targets = [parse_url(f"127.0.0.1:{server.port}") for server in servers]
        for server in servers:
            assert server.embed("warm").status == 200
        machine = measured(targets[0])
        agree = [row(report, load, requests_of(arguments.seconds, load), targets, machine) for load in LOADS]
    report.note(
        f"Load: times {NUM_SERVERS * MACHINE.tokens_per_second:,.0f} tokens a second. Servers: {' '.join(FLAGS)}."
    )
    report.note(
        "Measured on one of them before, by lone requests, and given to the simulation, HTTP and tokenizing: "
        f"{1000 * machine.request_seconds:.1f} ms a request, {machine.tokenized_per_second:,.0f} tokens a second."
    )
    report.note(f"Throughput and p50 within {TOLERANCE:.0%} at every load: {'yes' if all(agree) else 'no'}.")
    report.note(
        "The client and all servers share one machine. Not shown: real models, networks, a balancer's own cost."
    )
    report.finish(write=arguments.write)
    if not all(agree):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
