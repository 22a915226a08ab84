"""Embedline's throughput while another process takes what it gets of a core, against its throughput on a quiet machine.

    python -m benchmarks.beside_busy [--write]

64 single requests in flight, mixed texts, quiet and disturbed in turns. Both processes are of one session, as programs
of one container or service are: between sessions the kernel may share the cores first (sched_autogroup).
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.measuring.load import measure, requests_of
from benchmarks.measuring.report import PACKAGES, Report
from benchmarks.measuring.servers import RunningServer, embedline
from benchmarks.measuring.texts import Prose
from benchmarks.peers.cases import cases
from benchmarks.peers.models import MINILM, MODELS
from embedline.bench.load import Load
from engine.store.model_source import resolve


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Somebody else who takes what they get of a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    case = cases(MODELS["minilm"], Prose(resolve(MINILM).path / "tokenizer.json"), is_quick=False)[0]
    report = Report("beside-busy", "Embedline beside one busy process", packages=(*PACKAGES, "openvino"))
    found: dict[str, list[float]] = {"quiet": [], "beside it": []}
    report.table("Every run")
    with tempfile.TemporaryDirectory() as cache, contextlib.ExitStack() as stack:
        server = RunningServer(embedline(name="Embedline"), cache=Path(cache))
        stack.callback(server.stop)
        server.wait_for_answer(case.corpus.texts[0])
        requests = requests_of(server.port, case.corpus, batch_size=case.batch_size)
        load = Load(concurrency=case.concurrency, seconds=case.seconds)
        measure(server.process.pid, server.port, requests, load)  # which nobody counts
        for round_number in range(arguments.rounds):
            for label, disturbed in (("quiet", contextlib.nullcontext()), ("beside it", busy_process())):
                with disturbed:
                    ran = measure(server.process.pid, server.port, requests, load)
                found[label].append(ran.summary.texts_per_second)
                report.row(
                    {
                        "round": round_number,
                        "machine": label,
                        "texts/s": f"{ran.summary.texts_per_second:.1f}",
                        "p50 ms": f"{ran.summary.percentile_ms(50):.0f}",
                        "p99 ms": f"{ran.summary.percentile_ms(99):.0f}",
                        "foreign CPU": f"{ran.foreign_share:.0%}",
                    }
                )
    report.note(f"Medians: {median(found['beside it']) / median(found['quiet']):.0%} of quiet is left. {case.corpus}.")
    report.note("Foreign CPU: what others on the machine took of all its cores meanwhile, the load generator left out.")
    report.note("Not shown: other machines, several busy processes, a container with a limit.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
