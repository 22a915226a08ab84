"""The report: what was checked, on which machine, by which versions and command."""

import datetime
import importlib.metadata
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring.report import Table
from tests.tensorrt_llm_gpu.judging import Check, Verdict

Judged = Sequence[tuple[Check, Verdict]]

_TOY = "toy run: a check of this code on a stand-in, not of TensorRT-LLM"
_PACKAGES = ("tensorrt_llm", "torch", "transformers", "triton", "numpy", "safetensors", "flashinfer-python")
_MAX_CELL = 300  # characters


def write(judged: Judged, folder: Path, *, machine: str, device: str, is_toy: bool) -> Path:
    """machine: the card in words; device: its name alone, for the file's."""
    today = datetime.date.today().isoformat()
    slug = "toy-not-a-result" if is_toy else re.sub(r"[^a-z0-9]+", "-", device.lower().replace("nvidia", "")).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tensorrt-llm_{slug}_{today}.md"
    path.write_text(_text(judged, today, _TOY.upper() if is_toy else machine))
    return path


def summary(judged: Judged) -> str:
    """One line."""
    num_failed = sum(not verdict.has_passed for _, verdict in judged)
    return f"{len(judged) - num_failed} of {len(judged)} checks passed" + (f", {num_failed} FAILED" * (num_failed > 0))


def _text(judged: Judged, today: str, machine: str) -> str:
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    command = shlex.join(["python", "-m", "tests.tensorrt_llm_gpu", *sys.argv[1:]])
    tables = [line for table in _tables(judged) for line in ("", *table.markdown())]
    return "\n".join(
        [
            "# The tensorrt-llm engine on a GPU",
            "",
            f"- Date: {today}",
            f"- Machine: {machine}",
            f"- Versions: Python {platform.python_version()}, {versions}",
            f"- Command: `{command}`",
            f"- Result: {summary(judged)}",
            *tables,
            "",
            "- Models are random but for the one that was named. Cosines and differences are of rows as the engine "
            "gives them, scores raw.",
            "- Times are medians of 20 batches in the engine's process, Python and copies counted; no server is about.",
            "- Not shown: what the vectors are worth for retrieval, other models, several GPUs, load over hours.",
            "",
        ]
    )


def _tables(judged: Judged) -> list[Table]:
    tables: dict[str, Table] = {}
    for check, verdict in judged:
        table = tables.setdefault(check.section, Table(check.section))
        table.rows.append(
            {
                "check": check.title,
                "found": _cell(verdict.found),
                "asked": _cell(verdict.asked),
                "": "passed" if verdict.has_passed else "FAILED",
            }
        )
    return list(tables.values())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:_MAX_CELL]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
