"""A benchmark's tables: printed as they come, and written with what is needed to read them later."""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from embedline import __version__

RESULTS = Path(__file__).parents[1] / "results"
PACKAGES = ("numpy", "tokenizers", "uvicorn", "uvloop", "fastapi", "orjson", "msgspec", "torch", "transformers")


def hardware() -> str:
    """Processor, cores and memory, in words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = cpu.get("flags", "").split()
    vectors = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_tile") if name in flags]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    cores = sum(line.startswith("processor") for line in lines)
    # The name alone is often a family's ("AMD EPYC"); the numbers say which processor it is.
    numbers = [
        f"{name.removeprefix('cpu ')} {cpu[name]}" for name in ("cpu family", "model", "stepping") if name in cpu
    ]
    model = ", ".join([cpu.get("model name", platform.machine()), *numbers])
    return f"{cores} cores, {model} ({', '.join(vectors) or 'no vectors'}), {memory:.0f} GiB"


def commit() -> str:
    """Embedline's version and commit, and whether the source differs from it."""
    return f"{__version__}, {described(RESULTS.parent)}"


def described(folder: Path) -> str:
    """The commit of a checkout, and whether its source differs from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=, changed since", "--abbrev=10", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "not from a repository"
    return f"commit {found.stdout.strip()}"


def command() -> str:
    """What was typed, with the last part alone of paths that are another machine's business."""
    arguments = [f"…/{Path(word).name}" if Path(word).is_absolute() else word for word in sys.argv[1:]]
    spec = sys.modules["__main__"].__spec__
    module = spec.name.removesuffix(".__main__") if spec else f"benchmarks.{Path(sys.argv[0]).stem}"
    return " ".join(["python", "-m", module, *arguments])


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
    raw_rows: list[dict[str, object]] = field(default_factory=list)

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

    def row(self, cells: dict[str, object], raw: dict[str, object] | None = None) -> None:
        """Add a row and print it. `raw`: what goes into the JSON file in place of the cells."""
        self._tables[-1].rows.append(cells)
        self._tables[-1].raw_rows.append(cells if raw is None else raw)
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
        """Write benchmarks/results/<what>_<hardware>_<date>.md, and all rows as JSON beside it."""
        if not write:
            return
        RESULTS.mkdir(exist_ok=True)
        for suffix, text in ((".md", self._text()), (".json", self._json())):
            path = RESULTS / f"{self._stem}{suffix}"
            path.write_text(text)
            print(f"written: {path}")

    @property
    def _stem(self) -> str:
        return f"{self._what}_cpu-{hardware().split()[0]}core_{self._today}"

    def _conditions(self) -> dict[str, str]:
        versions = ", ".join(f"{name} {_version(name)}" for name in self._packages)
        return {
            "Date": self._today,
            "Embedline": commit(),
            "Machine": f"{hardware()}, {platform.system()} {platform.release().partition('-')[0]}",
            "Versions": f"Python {platform.python_version()}, {versions}",
            "Command": command(),
        }

    def _text(self) -> str:
        tables = [line for table in self._tables if table.rows for line in ("", *table.markdown())]
        return "\n".join(
            [
                f"# {self._title}",
                "",
                *(
                    f"- {name}: {f'`{value}`' if name == 'Command' else value}"
                    for name, value in self._conditions().items()
                ),
                *(("", f"![{self._title}]({self._plot.name})") if self._plot else ()),
                *tables,
                "",
                *(f"- {note}" for note in self._notes),
                "",
            ]
        )

    def _json(self) -> str:
        tables = {table.title: table.raw_rows for table in self._tables if table.rows}
        found = {"title": self._title, **self._conditions(), "tables": tables, "notes": self._notes}
        return json.dumps(found, indent=1, ensure_ascii=False, default=str) + "\n"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
