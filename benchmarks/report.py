"""A benchmark's tables: printed as they come, and written with what is needed to read them later."""

import argparse
import datetime
import importlib.metadata
import importlib.util
import platform
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "tokenizers", "uvicorn", "uvloop", "fastapi", "orjson", "msgspec", "torch", "transformers")


def hardware() -> str:
    """Processor, cores and memory, in words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    vectors = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_tile") if name in flags]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    cores = sum(line.startswith("processor") for line in lines)
    return f"{cores} cores, {model or platform.machine()} ({', '.join(vectors) or 'no vectors'}), {memory:.0f} GiB"


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """With the flags that reports with plots have; refuses at once what would fail only after the measurement."""
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    if arguments.write and importlib.util.find_spec("matplotlib") is None:
        parser.error("--write needs matplotlib: pip install 'embedline[bench]'")
    return arguments


@dataclass(slots=True)
class Table:
    """Rows that share their columns."""

    title: str
    rows: list[dict[str, object]] = field(default_factory=list)

    def markdown(self) -> list[str]:
        """With a heading if it has a title."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = [f"## {self.title}", ""] if self.title else []
        lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        return [*lines, *("| " + " | ".join(str(row.get(name, "")) for name in columns) + " |" for row in self.rows)]


class Report:
    """Tables, plots and the words around them."""

    def __init__(self, what: str, title: str, *, packages: tuple[str, ...] = PACKAGES) -> None:
        self._what = what
        self._title = title
        self._packages = packages
        self._tables = [Table("")]
        self._notes: list[str] = []
        self._plot: Path | None = None
        self._today = datetime.date.today().isoformat()

    def table(self, title: str) -> None:
        """The rows that follow belong to a new table."""
        print(f"\n{title}", flush=True)
        self._tables.append(Table(title))

    def row(self, cells: dict[str, object]) -> None:
        """Add a row and print it."""
        self._tables[-1].rows.append(cells)
        print("  ".join(f"{name}={value}" for name, value in cells.items()), flush=True)

    def note(self, text: str) -> None:
        """A sentence on what the figures show or do not show."""
        self._notes.append(text)

    def plot_path(self) -> Path:
        """Where the plot is to be saved that the report then shows."""
        RESULTS.mkdir(exist_ok=True)
        self._plot = RESULTS / f"{self._stem}.png"
        return self._plot

    def finish(self, *, write: bool) -> None:
        """Write benchmarks/results/<what>_<hardware>_<date>.md."""
        if not write:
            return
        path = RESULTS / f"{self._stem}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(self._text())
        print(f"written: {path}")

    @property
    def _stem(self) -> str:
        return f"{self._what}_cpu-{hardware().split()[0]}core_{self._today}"

    def _text(self) -> str:
        tables = [line for table in self._tables if table.rows for line in ("", *table.markdown())]
        command = shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
        versions = ", ".join(f"{name} {_version(name)}" for name in self._packages)
        return "\n".join(
            [
                f"# {self._title}",
                "",
                f"- Date: {self._today}",
                f"- Machine: {hardware()}, {platform.system()} {platform.release().partition('-')[0]}",
                f"- Versions: Python {platform.python_version()}, {versions}",
                f"- Command: `{command}`",
                *(("", f"![{self._title}]({self._plot.name})") if self._plot else ()),
                *tables,
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
