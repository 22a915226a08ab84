"""What benchmarks/against.sh does to each server: wait for it, put the load on it, and at last the table of all.

    python -m benchmarks.against wait|load --server NAME --image NAME --port N --model NAME --out DIR …
    python -m benchmarks.against table --out DIR

Needs numpy and nothing else, and nothing of the servers but OpenAI's /v1/embeddings.
"""

import argparse
import csv
import datetime
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring.load import drive
from benchmarks.measuring.report import RESULTS, Table
from embedline.bench.load import Load, Summary, summarize
from embedline.bench.options import Options, parse_url
from embedline.bench.requests import HttpRequest, built_in_texts, prepare

NAME = "against"
_NUM_TEXTS = 8192  # all different, so that no server has an answer ready
_MOST_IN_FLIGHT = 4096
_POLL_SECONDS = 1.0
_NOTES = (
    "Open loop: requests are sent when they are due, whether answers come or not; latencies count from then.",
    "All servers get the same texts in the same order at the same times, one server after the other on the same card. "
    "The generator runs on the same machine.",
    "`late` is how much later than due the generator came to a request (p99): above 10 ms it measured itself.",
    "Not shown: other models, several cards, whether the rows are equally good.",
)


def main() -> int:
    arguments = _arguments()
    if arguments.what == "wait":
        return wait(arguments)
    if arguments.what == "load":
        return load(arguments)
    return table(arguments.out)


def wait(arguments: argparse.Namespace) -> int:
    """Until a text is answered; 1 where that takes too long."""
    requests = _requests(arguments, batch_size=1)[:1]
    give_up = time.monotonic() + arguments.patience
    while time.monotonic() < give_up:
        asked = summarize(drive(arguments.port, requests, Load(concurrency=1, num_requests=1), patience=60.0))
        if asked.num_requests:
            return 0
        time.sleep(min(_POLL_SECONDS, arguments.patience))
    print(f"{arguments.server}: no answer within {arguments.patience:.0f} s", file=sys.stderr)
    return 1


def load(arguments: argparse.Namespace) -> int:
    """One run, one row; 1 where nothing was answered."""
    requests = _requests(arguments, batch_size=arguments.batch)
    traffic = {"concurrency": _MOST_IN_FLIGHT, "rate": arguments.rate}
    if arguments.warmup:
        drive(arguments.port, requests, Load(seconds=arguments.warmup, seed=1, **traffic))
    summary = summarize(drive(arguments.port, requests, Load(seconds=arguments.duration, seed=0, **traffic)))
    row = _row(arguments, summary)
    _append(_csv(arguments.out), row)
    print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
    return 0 if summary.num_requests else 1


def table(folder: Path) -> int:
    """Print and write what is in the CSV; 1 where that is nothing."""
    path = _csv(folder)
    rows = list(_read(path))
    if not rows:
        print("against: nothing was measured", file=sys.stderr)
        return 1
    lines = Table("Each server on the same card", [dict(row) for row in rows]).markdown()
    notes = [f"- {note}" for note in _NOTES]
    path.with_suffix(".md").write_text("\n".join(["# Embedline beside TEI and vLLM", "", *lines, "", *notes, ""]))
    print("\n".join(lines))
    return 0


def _row(arguments: argparse.Namespace, summary: Summary) -> dict[str, object]:
    tokens = summary.tokens_per_second
    return {
        "server": arguments.server,
        "image": arguments.image,
        "model": arguments.model,
        "requests/s offered": f"{arguments.rate:g}",
        "texts a request": arguments.batch,
        "texts/s": f"{summary.texts_per_second:.1f}",
        "tokens/s": "" if tokens is None else f"{tokens:.0f}",
        **{f"p{percent} ms": _number(summary.percentile_ms(percent)) for percent in (50, 90, 99)},
        "failed": "; ".join(f"{count} x {failure}" for failure, count in summary.failures.items()),
        "late ms": _number(summary.lag_p99_ms or 0.0),
    }


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f}"


def _requests(arguments: argparse.Namespace, *, batch_size: int) -> list[HttpRequest]:
    options = Options(url=f"127.0.0.1:{arguments.port}", batch_size=batch_size, model=arguments.model)
    return prepare(options, parse_url(options.url), built_in_texts(_NUM_TEXTS, seed=0))


def _csv(folder: Path) -> Path:
    return folder / f"{NAME}_{datetime.date.today().isoformat()}.csv"


def _append(path: Path, row: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _read(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("wait", "load", "table"))
    parser.add_argument("--server", default="")
    parser.add_argument("--image", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--rate", type=float, default=25.0, help="requests a second")
    parser.add_argument("--duration", type=float, default=30.0, help="seconds")
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds")
    parser.add_argument("--batch", type=int, default=1, help="texts a request")
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
