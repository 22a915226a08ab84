"""Checks the tensorrt-llm engine where there is a GPU and the package: rows, masks, FP8, graphs, memory, speed.

    python -m tests.tensorrt_llm_gpu [--model FOLDER] [--only WORD] [--out DIR]

Installs and fetches nothing. Each model is computed in a process of its own, so whatever fails is written down and the
next goes on. `--toy` runs the same in one process on a CPU, with whatever package is called tensorrt_llm there.
"""

import argparse
import dataclasses
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring.report import RESULTS
from tests.tensorrt_llm_gpu.checks import checks
from tests.tensorrt_llm_gpu.job import Job, Outcome
from tests.tensorrt_llm_gpu.judging import Check, Verdict, judged
from tests.tensorrt_llm_gpu.written import summary, write

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 900  # of one job; a first start of the library compiles and measures kernels
_MAX_WORDS = 500  # characters


def main() -> int:
    """1 where a check fails, or nothing can be checked here."""
    arguments = _arguments()
    lacking = _lacking(is_toy=arguments.toy)
    if lacking:
        print(lacking, file=sys.stderr)
        return 1
    chosen = [
        check
        for check in checks(model=arguments.model, is_toy=arguments.toy)
        if arguments.only in f"{check.section}: {check.title}"
    ]
    with tempfile.TemporaryDirectory(prefix="embedline-tensorrt-llm-") as work:
        found = _run(chosen, _in_this_process if arguments.toy else _in_a_child, Path(work))
    machine, device = ("", "") if arguments.toy else _machine()
    path = write(found, arguments.out, machine=machine, device=device, is_toy=arguments.toy)
    print(f"{summary(found)}; written: {path}")
    return int(not found or any(not verdict.has_passed for _, verdict in found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a model's folder, to be checked on texts besides")
    parser.add_argument("--only", default="", metavar="WORD", help="checks whose section or title has this word")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the report goes (benchmarks/results)")
    parser.add_argument("--toy", action="store_true", help="on a CPU, small: a check of this code alone")
    arguments = parser.parse_args()
    if arguments.toy and arguments.out == RESULTS:
        parser.error("--toy gives no results: say by --out where its report goes")
    if arguments.model and not Path(arguments.model).is_dir():
        parser.error("--model is not a folder")
    return arguments


def _lacking(*, is_toy: bool) -> str:
    """What keeps the suite from running, in one line; "" where nothing does."""
    missing = [
        name for name in ("tensorrt_llm", "torch", "transformers", "safetensors") if not importlib.util.find_spec(name)
    ]
    if missing:
        return f"{sys.executable} has no {', '.join(missing)}; ENGINE_PYTHON= names a Python that has"
    import torch

    if not is_toy and not torch.cuda.is_available():
        return f"torch of {sys.executable} sees no CUDA GPU, which the suite is for"
    return ""


def _machine() -> tuple[str, str]:
    """In words, and the card's name. After all jobs, as asking makes a context on the GPU."""
    import torch

    from benchmarks.gpu.card import described

    device = torch.device("cuda:0")
    return described(device), torch.cuda.get_device_name(device)


def _run(chosen: list[Check], compute: Callable[[Job, Path], Outcome], work: Path) -> list[tuple[Check, Verdict]]:
    outcomes: dict[str, Outcome] = {}
    found = []
    for check in chosen:
        for job in check.jobs:
            if repr(job) not in outcomes:
                print(f"  … {job}", flush=True)
                outcomes[repr(job)] = compute(job, work)
        verdict = judged(check, [outcomes[repr(job)] for job in check.jobs])
        state = "passed" if verdict.has_passed else "FAILED"
        print(f"{state}  {check.section}: {check.title}: {verdict.found}", flush=True)
        found.append((check, verdict))
    return found


def _in_this_process(job: Job, work: Path) -> Outcome:
    from tests.tensorrt_llm_gpu.child import outcome_of

    return outcome_of(job, work)


def _in_a_child(job: Job, work: Path) -> Outcome:
    """Whatever becomes of it, there is an outcome."""
    from tests.tensorrt_llm_gpu.child import read

    with tempfile.TemporaryDirectory(dir=work) as out:
        asked = Path(out, "job.json")
        asked.write_text(json.dumps(dataclasses.asdict(job)))
        command = [sys.executable, "-m", "tests.tensorrt_llm_gpu.child", str(asked), str(work), out]
        try:
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return Outcome(failure=f"not done within {_SECONDS} s")
        if Path(out, "outcome.json").is_file():
            return read(Path(out))
        return Outcome(failure=f"ended with {ended.returncode}: {' '.join(ended.stderr.split())[-_MAX_WORDS:]}")


if __name__ == "__main__":
    sys.exit(main())
