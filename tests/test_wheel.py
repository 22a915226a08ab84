"""The wheel, built and installed: one name in site-packages, its own code run beside another `server` or `engine`.

The serving tests start the whole tree of processes from a folder whose `server.py` and `engine/` are somebody else's.
"""

import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import embedline
from tests.server_e2e.running import ADDRESS, PATIENCE, READY, Log

ROOT = Path(__file__).resolve().parents[1]
APPLICATION = ("wire", "engine", "tokenizer_pool", "batch_manager", "server")
MARK = "DECOY_MARK"  # the environment variable that names the file in which an imported decoy leaves its name
DECOY = (
    f"import os\nopen(os.environ[{MARK!r}], 'a').write(__name__ + ' ')\nraise RuntimeError('a decoy was imported')\n"
)


@dataclass(frozen=True, slots=True)
class Place:
    """An installed wheel and the folder of a user who has files of the same names."""

    python: Path
    folder: Path
    mark: Path

    @property
    def command(self) -> str:
        return str(self.python.parent / "embedline")

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**kept, MARK: str(self.mark)}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command from the user's folder."""
        return subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=False
        )

    def imported_decoys(self) -> str:
        return self.mark.read_text() if self.mark.exists() else ""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the source, so that nothing left from an earlier build gets in."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("embedline", *APPLICATION):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of a virtual environment with the wheel in it and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    installed = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    return python


@pytest.fixture
def place(python: Path, tmp_path: Path) -> Iterator[Place]:
    """The wheel beside decoys, for one test: in its own site-packages and in the folder from which it is run."""
    packages = site_packages(python)
    # What is installed here, found behind the wheel; an editable Embedline among it isn't, for that takes a hook.
    these = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (libraries := packages / "these_packages.pth").write_text("\n".join(these))
    folder = tmp_path / "of a user"
    folder.mkdir()
    for name in (*APPLICATION, "typer"):  # the last stands for what the command line itself imports
        plant(folder / f"{name}.py" if name == "server" else folder / name)
    for name in APPLICATION:
        plant(packages / name)
    yield Place(python=python, folder=folder, mark=tmp_path / "imported")
    libraries.unlink()
    for name in APPLICATION:
        shutil.rmtree(packages / name)


def site_packages(python: Path) -> Path:
    (folder,) = python.parents[1].glob("lib/python*/site-packages")
    return folder


def plant(path: Path) -> None:
    """A module, or a package where the path has no ending, that marks and refuses its import."""
    if path.suffix != ".py":
        path.mkdir()
        path /= "__init__.py"
    path.write_text(DECOY)


@pytest.mark.holds("Files in the working folder are never imported")
def test_there_is_one_name_in_site_packages(wheel: Path) -> None:
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert names == {"embedline", f"embedline-{embedline.__version__}.dist-info"}


def test_every_source_file_is_in_the_wheel(wheel: Path) -> None:
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "embedline").rglob("*.py")}
    for name in APPLICATION:
        expected |= {f"embedline/_app/{path.relative_to(ROOT)}" for path in (ROOT / name).rglob("*.py")}
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")} == expected


def test_the_base_wheel_requires_numpy_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    required = metadata.get_all("Requires-Dist", [])
    assert [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line] == ["numpy"]
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.holds("Shutdown")
def test_the_bare_wheel_says_what_to_install(python: Path) -> None:
    answer = subprocess.run([python.parent / "embedline", "--version"], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert re.fullmatch(r"embedline: the server needs .*pip install 'embedline\[server\]'\n", answer.stderr)


@pytest.mark.full
def test_a_decoy_can_be_imported(place: Place) -> None:
    """The tests below show something only if an import that goes wrong leaves its mark."""
    assert place.run(str(place.python), "-c", "import engine").returncode == 1
    assert place.imported_decoys() == "engine "


@pytest.mark.parametrize("as_module", [False, True], ids=["embedline", "python -m embedline"])
def test_the_command_runs_its_own_code_beside_decoys(place: Place, as_module: bool) -> None:
    command = [str(place.python), "-m", "embedline"] if as_module else [place.command]
    answer = place.run(*command, "--version")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert embedline.__version__ in answer.stdout
    assert place.imported_decoys() == ""


@pytest.mark.full
@pytest.mark.holds("Files in the working folder are never imported")
@pytest.mark.parametrize("as_module", [False, True], ids=["embedline", "python -m embedline"])
def test_every_process_runs_its_own_code_beside_decoys(place: Place, as_module: bool) -> None:
    command = [str(place.python), "-m", "embedline"] if as_module else [place.command]
    with serving(place, command) as (process, url):
        assert len(embed(url, "a text")) == 1024
        titles = {title for pid in descendants(process.pid) if (title := command_line(pid)).startswith("embedline: ")}
        roles = {title.removeprefix("embedline: ").rstrip("0123456789 ") for title in titles}
        assert {"frontend", "tokenizer", "batch manager", "engine"} <= roles
    assert process.returncode == 0
    assert place.imported_decoys() == ""


@contextmanager
def serving(place: Place, command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`embedline serve` with the fake engine, run from the user's folder until the block ends."""
    arguments = ["serve", "--engine", "fake", "--fake-dim", "1024", "--hostname", "127.0.0.1", "--port", "0"]
    arguments += ["--topology", "spread"]
    with subprocess.Popen(
        [*command, *arguments],
        cwd=place.folder,
        env={**place.environment(), "EMBEDLINE_DRAIN_DELAY": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        log = Log(process)
        try:
            (address, _), _ = log.wait_for(ADDRESS), log.wait_for(READY)
            yield process, address[0].removeprefix("on ")
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
        finally:
            process.kill()  # does nothing to a process that has ended
            log.join()


def embed(url: str, text: str) -> list[float]:
    body = json.dumps({"model": "any", "input": text}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        row: list[float] = json.load(answer)["data"][0]["embedding"]
        return row


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    children = [
        int(child)
        for listing in Path(f"/proc/{pid}/task").glob("*/children")  # each thread has its own
        for child in listing.read_text().split()
    ]
    return children + [below for child in children for below in descendants(child)]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
