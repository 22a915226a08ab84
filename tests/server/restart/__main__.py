"""How many requests are lost over many stops and takeovers under load.

    python -m tests.server.restart stops --rounds 20 --requests 5000 --write

`--write` adds benchmarks/results/. The tests of this folder are the same in small.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.measuring.report import Report
from tests.server.restart.load import Load
from tests.server.restart.test_haproxy_faults import rolling
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, Server, serving

FLAGS = (*FAKE, "--fake-cost-ms", "2", "--frontends", "2", "--request-log", "off")
_NUM_CLIENTS = 128  # half of them open a connection for each request


async def _stop(server: Server, num_requests: int, outcomes: Counter[str]) -> None:
    async with Load(server.port, _NUM_CLIENTS, outcomes) as load:
        await load.wait_for(num_requests)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.process.wait, PATIENCE)


def stops(rounds: int, num_requests: int) -> Counter[str]:
    """SIGTERM, each time to a new server."""
    outcomes: Counter[str] = Counter()
    for number in range(rounds):
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(*FLAGS, "--drain-delay", str(number % 3), folder=Path(folder)) as server,
        ):
            asyncio.run(_stop(server, num_requests, outcomes))
            assert server.process.returncode == 0
        print(f"stop {number + 1}: {dict(outcomes)}", flush=True)
    return outcomes


async def _take_over(rounds: int, num_requests: int, folder: Path) -> Counter[str]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(*FLAGS, folder=folder))
        async with Load(server.port, _NUM_CLIENTS) as load:
            for number in range(rounds):
                await load.wait_for(num_requests)
                after = Server(*FLAGS, "--takeover", "--port", str(server.port), folder=folder)
                stack.callback(after.close)
                after.port = server.port
                await asyncio.to_thread(server.process.wait, PATIENCE)
                assert server.process.returncode == 0
                server = after
                print(f"takeover {number + 1}: {dict(load.outcomes)}", flush=True)
            await load.wait_for(num_requests)
        return load.outcomes


def takeovers(rounds: int, num_requests: int) -> Counter[str]:
    """Each server takes over from the one before."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_take_over(rounds, num_requests, Path(folder)))


def behind_haproxy(rounds: int, num_requests: int) -> Counter[str]:
    """Two servers are restarted in turn, so often each."""
    with tempfile.TemporaryDirectory() as folder:
        return rolling(Path(folder), rounds=rounds, num_requests=num_requests).outcomes


def main() -> int:
    """The exit code: 1 if a request was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.server.restart", description=__doc__)
    parser.add_argument("what", choices=("stops", "takeovers", "rolling", "all"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=5000, help="before each stop or takeover")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    report = Report("restarts", "Requests lost in stops and takeovers under load")
    runs = {"stops": stops, "takeovers": takeovers, "rolling": behind_haproxy}
    lost = 0
    for name in runs if arguments.what == "all" else [arguments.what]:
        outcomes = runs[name](arguments.rounds, arguments.requests)
        unanswered = {what: count for what, count in outcomes.items() if what not in ("answered", "refused")}
        lost += sum(unanswered.values())
        report.row(
            {
                "what": name,
                "rounds": arguments.rounds,
                "clients": _NUM_CLIENTS,
                "answered": outcomes["answered"],
                "lost": sum(unanswered.values()),
                "lost, how": ", ".join(unanswered) or "-",
                "connections refused": outcomes["refused"],
            }
        )
    report.note(
        "A request counts once its connection is established; everything but a whole answer with status 200 and the "
        "right row is a loss. Connections that are refused once the port is closed are another server's behind a "
        "balancer; a takeover may refuse none. Stops are with --drain-delay 0, 1 and 2 in turns."
    )
    report.finish(write=arguments.write)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
