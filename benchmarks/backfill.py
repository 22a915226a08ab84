"""`embedline backfill` against the engine alone, interleaved in one run.

python -m benchmarks.backfill [--quick] [--write]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.engines.__main__ import MODEL, ROOT, SUBJECTS, run_alone
from benchmarks.measuring.graded_pairs import graded_pairs
from benchmarks.measuring.report import PACKAGES, Report, parse
from benchmarks.measuring.texts import Corpus, Prose
from engine.store.model_source import resolve

_PATIENCE = 600.0  # seconds
NOTES = (
    "Engine alone: packed batches of token ids, no tokenizing, no files; what came back within the seconds of the run.",
    "Backfill: the whole command with its own engine, from JSONL to Parquet (float16). Its rate counts from the moment "
    "at which the model is loaded to the last part that is written, with the end in which the queue runs dry.",
    "Both have the same texts, each once in a backfill, and the same number of threads. Tokenizing, HTTP over a "
    "Unix socket, reading and writing take their time from the same cores. The engine alone has the texts in the order "
    "in which they come; a backfill sorts them by length, so its share may be above 1.",
    "Not shown: a GPU, object stores, other models.",
)


def backfill(corpus: Corpus, *, cache: Path) -> dict[str, float]:
    """Run the command; its last line."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in corpus.texts))
        command = [sys.executable, "-m", "embedline", "backfill", str(source), f"{folder}/out", "--model-id", MODEL]
        command += ["--engine", "openvino", "--dtype", "float32", "--compiled-cache", str(cache)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE, check=True
        )
        found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run of the engine alone")
    parser.add_argument("--rows", type=int, default=8192)
    arguments = parse(parser)
    rounds, seconds, rows = (1, 4.0, 1024) if arguments.quick else (arguments.rounds, arguments.seconds, arguments.rows)
    prose = Prose(resolve(MODEL).path / "tokenizer.json")
    corpus = prose.mixed(rows)
    corpora = (corpus, prose.uniform("query", 1, num_tokens=10), prose.given("graded pairs", graded_pairs().texts))
    report = Report(
        "backfill",
        "A backfill against the engine alone, all-MiniLM-L6-v2 on a CPU",
        packages=(*PACKAGES, "openvino", "pyarrow"),
    )
    for note in (f"{corpus}.", *NOTES):
        report.note(note)
    alone: list[float] = []
    whole: list[float] = []
    report.table("Every round")
    with tempfile.TemporaryDirectory() as cache:
        os.chmod(cache, 0o700)
        backfill(prose.mixed(256), cache=Path(cache))  # compiles the model
        for number in range(1, rounds + 1):
            alone.append(run_alone(SUBJECTS[0], corpora, cache=Path(cache), seconds=seconds)["tokens_per_second"])
            whole.append(backfill(corpus, cache=Path(cache))["tokens_per_second"])
            report.row({"round": number, **_cells(alone[-1], whole[-1])})
    report.table("Median")
    report.row(_cells(statistics.median(alone), statistics.median(whole)))
    report.finish(write=arguments.write)


def _cells(alone: float, whole: float) -> dict[str, object]:
    return {
        "engine alone tokens/s": f"{alone:.0f}",
        "backfill tokens/s": f"{whole:.0f}",
        "share": f"{whole / alone:.3f}",
    }


if __name__ == "__main__":
    main()
