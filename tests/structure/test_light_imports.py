"""What must not be loaded: torch outside the engines, anything but numpy in the engine worker's own modules, and in a
server that answers requests for embeddings what only other requests and commands need."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import serving
from tests.structure.sources import ROOT, is_within, sources

# Prints, for each module named on the command line, which of the heavy packages its import brought in first.
WHAT_LOADS = """
import importlib, json, sys
heavy, *modules = sys.argv[1:]
found, seen = {}, set()
for module in modules:
    importlib.import_module(module)
    new = {name for name in heavy.split(",") if name in sys.modules} - seen
    if new:
        found[module] = sorted(new)
    seen |= new
print(json.dumps(found))
"""
HEAVY = "torch,transformers"
# what shows the pages on the API, lets web pages ask, fetches models, and reads other command lines
ON_NEED = {"fastapi", "starlette", "pydantic", "httpx", "typer", "rich", "importlib.metadata", "email.utils"}
LAUNCHER = "embedline.__main__"
ADAPTERS = ("embedline.adapters.haystack", "embedline.adapters.langchain", "embedline.adapters.llama_index")


def torch_free_modules() -> list[str]:
    """All modules but those of the engines that compute with torch (each engine is a folder in engine/)."""
    found = sources("wire", "tokenizer_pool", "batch_manager", "server", "embedline", "engine")
    engines = [source for source in found if source.package == "engine" and len(source.path.parts) > 2]
    # An adapter imports its library, which need not be installed; with_torch is a part of engines.
    left_out = (LAUNCHER, *ADAPTERS, "engine.rows.with_torch")
    return [source.module for source in found if source not in engines and not is_within(source.module, left_out)]


def what_loads(modules: list[str], *, root: Path) -> dict[str, list[str]]:
    """Import the modules, which lie in `root`, in a new process; which of them loads which heavy package."""
    setup = f"import sys; sys.path.insert(0, {str(root)!r})"
    command = [sys.executable, "-P", "-c", f"{setup}\n{WHAT_LOADS}", HEAVY, *modules]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    loaded: dict[str, list[str]] = json.loads(answer.stdout)
    return loaded


@pytest.mark.holds("torch stays in the engines")
def test_torch_stays_in_the_engines() -> None:
    modules = torch_free_modules()
    assert {"engine.types", "engine.messages", "tokenizer_pool.messages", "batch_manager.messages"} <= set(modules)
    assert what_loads(modules, root=ROOT) == {}


def test_a_planted_import_of_torch_is_found(tmp_path: Path) -> None:
    (tmp_path / "innocent.py").write_text("import heavy_inside")
    (tmp_path / "heavy_inside.py").write_text("import transformers")
    (tmp_path / "transformers.py").write_text("")
    assert what_loads(["json", "innocent"], root=tmp_path) == {"innocent": ["transformers"]}


@pytest.fixture(scope="module")
def numpy_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which numpy is the only package."""
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    folder = tmp_path_factory.mktemp("packages")
    for name in ("numpy", "numpy.libs"):  # the latter holds the shared libraries of the wheels that have some
        if (package.parent / name).is_dir():
            (folder / name).symlink_to(package.parent / name)
    return folder


def import_with_numpy_alone(module: str, packages: Path) -> subprocess.CompletedProcess[str]:
    """Import one of our modules where nothing is installed but numpy: -I and -S leave the standard library only."""
    code = f"import sys; sys.path += [{str(packages)!r}, {str(ROOT)!r}]; import {module}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.holds("torch stays in the engines")
@pytest.mark.parametrize(
    "module",
    [
        "engine.types",
        "engine.messages",
        "engine.worker",
        "engine.fake",
        "embedline.client.client",
        "embedline.pipelines",
    ],
)
def test_imports_where_numpy_is_the_only_package(module: str, numpy_alone: Path) -> None:
    answer = import_with_numpy_alone(module, numpy_alone)
    assert answer.returncode == 0, answer.stderr


def test_nothing_else_is_there_where_numpy_is_the_only_package(numpy_alone: Path) -> None:
    assert "No module named 'pytest'" in import_with_numpy_alone("pytest", numpy_alone).stderr


def test_a_server_that_embeds_has_imported_nothing_that_few_need(tmp_path: Path) -> None:
    """Every process says what it imports, in the log."""
    with serving(*FAKE, folder=tmp_path, environment={"PYTHONPROFILEIMPORTTIME": "1"}) as server:
        assert server.embed("a text").status == 200
        before = imports(server.log.lines)
        assert {"server.supervisor.supervisor", "server.http.app", "engine.registry", "tokenizers"} <= before
        assert before & ON_NEED == set()
        assert server.request("GET", "/docs").status == 200
    assert {"fastapi", "starlette", "pydantic"} <= imports(server.log.lines)


def imports(log: list[str]) -> set[str]:
    return {line.rpartition("|")[2].strip() for line in log if line.startswith("import time:")}
