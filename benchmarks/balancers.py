"""How HAProxy chooses among servers, under requests of very different sizes: what queries and bulk wait for.

    python -m benchmarks.balancers [--seconds 20] [--rounds 3] [--write]

Three whole servers with the fake engine behind HAProxy as deploy/balancers configures it, but for `balance`. Requests
of 1 to 2,048 texts and queries come at random times, the same ones to each policy in turn. The weights are those of an
agent that reads GET /load of each server.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from benchmarks.fleet import traces
from benchmarks.fleet.check import FLAGS, MACHINE, NUM_SERVERS, body_of, replay
from benchmarks.fleet.figures import is_query, percentile
from benchmarks.fleet.traces import HOUR, Stream, Trace
from benchmarks.measuring.report import Report
from benchmarks.measuring.servers import free_port
from embedline.bench.connection import ConnectionLost, ConnectionPool
from embedline.bench.options import parse_url
from embedline.bench.run import run_on_loop
from tests.server_e2e.processes.balancer import Balancer, configured
from tests.server_e2e.running import serving

AGENT = "leastconn, weights by tokens"
POLICIES = {"roundrobin": "roundrobin", "leastconn": "leastconn", AGENT: "leastconn", "random(2)": "random(2)"}
LOADS = (0.5, 0.85)  # of what three engines compute without the fixed cost of batches
QUERIES_PER_SECOND = 20.0
INTER = 0.2  # seconds between two questions of HAProxy
HALF = 4000  # tokens let in at which a server has half of its weight: a fifth of a second
_LEAST_TOKENS = 5  # of a text of body_of
_QUERY_TOKENS = 12


def mixed(seconds: float, load: float, seed: int) -> Trace:
    """1 to 2,048 texts of 30 tokens a request (log-uniform), and queries."""
    rate = load * NUM_SERVERS * MACHINE.tokens_per_second
    bulk = Stream(tokens_per_second=rate, max_texts=traces.MAX_TEXTS, tokens_per_text=30, peak_hour=0, swing=0)
    query = QUERIES_PER_SECOND * _QUERY_TOKENS
    queries = Stream(tokens_per_second=query, max_texts=1, tokens_per_text=_QUERY_TOKENS, peak_hour=0, swing=0)
    trace = traces.draw((bulk, queries), seed=seed, hours=seconds / HOUR)
    return Trace(trace.at, trace.texts, trace.texts * np.maximum(trace.tokens // trace.texts, _LEAST_TOKENS))


def weight(in_flight_tokens: int) -> int:
    """Percent of a server's weight, for HAProxy's agent-check."""
    return max(1, round(100 * HALF / (HALF + in_flight_tokens)))


@contextlib.asynccontextmanager
async def agents(servers: Sequence[int]) -> AsyncIterator[list[int]]:
    """Ports on each of which HAProxy is answered with the weight of its server: a line such as 75%."""
    targets = [parse_url(f"127.0.0.1:{port}") for port in servers]
    pools = [ConnectionPool(target, patience=1.0) for target in targets]

    async def answer(number: int, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionLost, ConnectionError):
            connection = await pools[number].take()
            load = await connection.ask(f"GET /load HTTP/1.1\r\nhost: 127.0.0.1:{servers[number]}\r\n\r\n".encode())
            pools[number].give_back(connection)
            if load.status == 200:  # else HAProxy keeps the last weight
                writer.write(f"{weight(json.loads(load.body)['in_flight_tokens'])}%\n".encode())
        writer.close()

    async def listen(number: int) -> asyncio.Server:
        return await asyncio.start_server(lambda _, writer: answer(number, writer), "127.0.0.1", 0)

    listening = [await listen(number) for number in range(len(servers))]
    try:
        yield [server.sockets[0].getsockname()[1] for server in listening]
    finally:
        for server in listening:
            server.close()
        for pool in pools:
            pool.close()


@contextlib.contextmanager
def haproxy(policy: str, servers: Sequence[int], agent_ports: Sequence[int], folder: Path) -> Iterator[int]:
    """Its port."""
    port = free_port()
    text = configured("haproxy", port, servers).replace("balance leastconn ", f"balance {POLICIES[policy]} ")
    if policy == AGENT:
        for server, agent in zip(servers, agent_ports, strict=True):
            check = f"weight 100 agent-check agent-inter {1000 * INTER:.0f}ms agent-port {agent}"
            text = text.replace(f"127.0.0.1:{server}", f"127.0.0.1:{server} {check}")
    path = folder / "haproxy.cfg"
    path.write_text(text)
    process = subprocess.Popen(["haproxy", "-db", "-f", str(path)], stderr=subprocess.DEVNULL)
    try:
        balancer = Balancer(port)
        while not balancer.is_ready():
            assert process.poll() is None, "haproxy does not start"
        yield port
    finally:
        process.kill()
        process.wait()


def latencies_of(policy: str, servers: Sequence[int], trace: Trace, folder: Path) -> NDArray[np.float64]:
    """Of each request of the trace, in seconds; inf where there was no 200."""
    sizes = zip(trace.texts.tolist(), trace.tokens.tolist(), strict=True)
    bodies = [body_of(number, texts, tokens) for number, (texts, tokens) in enumerate(sizes)]

    async def run() -> list[float]:
        async with agents(servers) as ports:
            with haproxy(policy, servers, ports, folder) as port:
                return await replay([parse_url(f"127.0.0.1:{port}")], trace, bodies)

    return np.array(run_on_loop(run()))


def row(policy: str, load: float, rounds: Sequence[tuple[Trace, NDArray[np.float64]]]) -> dict[str, float]:
    """Percentiles of all rounds together, and of the rounds apart those of queries."""
    latencies = np.concatenate([found for _, found in rounds])
    of_queries = np.concatenate([is_query(trace) for trace, _ in rounds])
    seconds = [float((trace.at + found)[np.isfinite(found)].max()) for trace, found in rounds]
    tokens = [int(trace.tokens[np.isfinite(found)].sum()) for trace, found in rounds]
    figures = {"queries": float(of_queries.sum()), "bulk": float((~of_queries).sum())}
    for name, part in (("queries", latencies[of_queries]), ("bulk", latencies[~of_queries])):
        figures |= {f"p{percent} {name} s": percentile(part, percent) for percent in (50, 99)}
    apart = [percentile(found[is_query(trace)], 99) for trace, found in rounds]
    figures |= {"least p99 queries s": min(apart), "most p99 queries s": max(apart)}
    return figures | {"tokens/s": sum(tokens) / sum(seconds), "errors": float(np.isinf(latencies).sum())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.balancers", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3, help="of all policies in turn, each with other requests")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    if shutil.which("haproxy") is None:
        parser.error("haproxy is not installed")
    report = Report("balancers", "HAProxy in front of three servers, under requests of 1 to 2,048 texts and queries")
    found: dict[tuple[float, str], list[tuple[Trace, NDArray[np.float64]]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        ports = [stack.enter_context(serving(*FLAGS, folder=folder)).port for _ in range(NUM_SERVERS)]
        for number, load in itertools.product(range(arguments.rounds), LOADS):
            trace = mixed(arguments.seconds, load, seed=number)
            for policy in (*POLICIES, *reversed(POLICIES))[number % 2 * len(POLICIES) :][: len(POLICIES)]:
                latencies = latencies_of(policy, ports, trace, folder)
                found.setdefault((load, policy), []).append((trace, latencies))
                print(number, load, policy, f"{percentile(latencies[is_query(trace)], 99):.3f} s", flush=True)
    for load in LOADS:
        report.table(f"At {load:.0%} of what three engines compute")
        for policy in POLICIES:
            figures = row(policy, load, found[load, policy])
            cells: dict[str, object] = {
                name: f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for name, value in figures.items()
            }
            report.row({"balance": policy, **cells}, {"balance": policy, "load": load, **figures})
    report.note(
        f"{arguments.rounds} rounds of {arguments.seconds:g} s of each load, every policy in turn with the same "
        "requests at the same times: 1 to 2,048 texts of 30 tokens (log-uniform), and "
        f"{QUERIES_PER_SECOND:g} queries a second. Queries are what the server takes as interactive by size. "
        f"Servers: {' '.join(FLAGS)}."
    )
    report.note(
        f"Weights by tokens: `agent-check` every {INTER:g} s, answered with {HALF:,} / ({HALF:,} + in_flight_tokens of "
        "GET /load) of the weight, 1 % at least. All else is deploy/balancers/haproxy.cfg."
    )
    report.note("Servers, HAProxy, the agent and the client share one machine. Not shown: real models, networks, GPUs.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
