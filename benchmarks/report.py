"""A benchmark's rows: printed as they come, and written with what is needed to read them later."""

import datetime
import importlib.metadata
import platform
import shlex
import sys
from pathlib import Path

_RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("numpy", "tokenizers", "uvicorn", "uvloop", "fastapi", "orjson", "msgspec", "torch", "transformers")


def hardware() -> str:
    """Processor and cores, in words."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    cores = sum(line.startswith("processor") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return f"{cores} cores, {model}"


class Report:
    """One table and the words around it."""

    def __init__(self, what: str, title: str) -> None:
        self._what = what
        self._title = title
        self._rows: list[dict[str, object]] = []
        self._notes: list[str] = []

    def row(self, cells: dict[str, object]) -> None:
        """Add a row and print it."""
        self._rows.append(cells)
        print("  ".join(f"{name}={value}" for name, value in cells.items()), flush=True)

    def note(self, text: str) -> None:
        """A sentence on what the figures show or do not show."""
        self._notes.append(text)

    def finish(self, *, write: bool) -> None:
        """Write benchmarks/results/<what>_<hardware>_<date>.md."""
        if not write:
            return
        today = datetime.date.today().isoformat()
        path = _RESULTS / f"{self._what}_cpu-{hardware().split()[0]}core_{today}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(self._text(today))
        print(f"written: {path}")

    def _text(self, today: str) -> str:
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        table = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        table += ["| " + " | ".join(str(row.get(name, "")) for name in columns) + " |" for row in self._rows]
        command = shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
        versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
        return "\n".join(
            [
                f"# {self._title}",
                "",
                f"- Date: {today}",
                f"- Machine: {hardware()}, {platform.system()} {platform.release().partition('-')[0]}",
                f"- Versions: Python {platform.python_version()}, {versions}",
                f"- Command: `{command}`",
                "",
                *table,
                "",
                *(f"- {note}" for note in self._notes),
                "",
            ]
        )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
