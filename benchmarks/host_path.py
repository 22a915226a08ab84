"""CPU time a request costs all processes of a server together, everything but the model being real.

    python -m benchmarks.host_path [--write]

One text of 20 tokens, raw bytes, dimension 1024, 16 connections, the fake engine.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measuring.load import drive
from benchmarks.measuring.processes import cpu_seconds
from benchmarks.measuring.report import Report
from embedline.bench.bodies import Request, post
from embedline.bench.load import Load
from embedline.bench.options import Target
from embedline.bench.summary import Summary, summarize
from tests.server_e2e.expected import ids_of
from tests.server_e2e.running import Server, serving

TEXT = "the quick brown fox jumps over the lazy dog and then runs far away from us again today"
TEXTS = [TEXT.replace("the", str(number), 1) for number in range(256)]  # equal ones in flight would be computed once


def cpu_by_process(server: Server) -> dict[str, float]:
    pids = {**server.processes(), "supervisor": server.process.pid}
    return {title: cpu_seconds(pid) for title, pid in sorted(pids.items())}


def measure(server: Server, *, encoding: str, seconds: float) -> tuple[Summary, dict[str, float]]:
    """What came back, and microseconds of CPU a request by process."""
    bodies = [json.dumps({"input": text, "model": "m", "encoding_format": encoding}).encode() for text in TEXTS]
    target = Target("127.0.0.1", server.port, False, "")
    requests = [Request(post(target, "/v1/embeddings", body), 1) for body in bodies]
    drive(server.port, requests, Load(concurrency=16, seconds=1))
    before = cpu_by_process(server)
    summary = summarize(drive(server.port, requests, Load(concurrency=16, seconds=seconds)))
    after = cpu_by_process(server)
    return summary, {title: (after[title] - before[title]) / summary.num_requests * 1e6 for title in after}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    report = Report("host-path", f"One text of {len(ids_of(TEXT))} tokens, 16 connections, fake engine, dimension 1024")
    with (
        TemporaryDirectory() as folder,
        serving("--engine", "fake", "--fake-dim", "1024", folder=Path(folder)) as server,
    ):
        for round_number in range(arguments.rounds):
            for encoding in ("bytes", "base64", "float"):
                summary, by_process = measure(server, encoding=encoding, seconds=arguments.seconds)
                report.row(
                    {
                        "round": round_number,
                        "encoding": encoding,
                        "requests/s": f"{summary.requests_per_second:.0f}",
                        "failed": sum(summary.failures.values()),
                        "p50 ms": f"{summary.percentile_ms(50):.2f}",
                        "p99 ms": f"{summary.percentile_ms(99):.2f}",
                        **{f"{title} µs": f"{micros:.0f}" for title, micros in by_process.items()},
                        "sum µs": f"{sum(by_process.values()):.0f}",
                    }
                )
    report.note("CPU µs a request: user and system time of each process, from /proc, over the requests it answered.")
    report.note("The client runs on the same machine and is not counted; absolute requests/s are a lower bound.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
