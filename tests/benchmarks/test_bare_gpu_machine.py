"""A bare GPU machine, which has what computes and nothing of the server: the tests for it can be collected there."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.benchmarks.bare_python import bare_python
from tests.structure.sources import ROOT

WITH_TRANSFORMERS = ("httpcore", "huggingface-hub", "jinja2", "rich", "tokenizers", "typer")
ABSENT = ("pytest_asyncio", "msgspec", "fastapi", "uvicorn", "pydantic", "orjson", "zmq")
LACKS = f"import importlib.util as found, sys; sys.exit(any(map(found.find_spec, {ABSENT})))"
FOLDER = "tests/engine/fused/gpu"
NO_CACHE = ("-p", "no:cacheprovider")
ALONE = ("-c", "/dev/null", "--rootdir", ".", "--confcutdir", FOLDER, "--import-mode=importlib", *NO_CACHE)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare"))


def test_it_lacks_the_server(python: Path) -> None:
    assert subprocess.run([python, "-c", LACKS], check=False).returncode == 0


@pytest.mark.full
def test_what_needs_a_gpu_is_collected(python: Path) -> None:
    command = (str(python), "-m", "pytest", *ALONE, "-q", "--collect-only", FOLDER)
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    for file in Path(ROOT, FOLDER).glob("test_*.py"):
        assert f"{file.name}::" in ran.stdout


def test_wheels_hold_what_the_server_lacks_there() -> None:
    """Each requirement of a server's frontend comes with torch and transformers, or is a wheel of a known version."""
    (listed,) = re.findall(r"^GPU_WHEELS := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    wheels = {canonicalize_name(name) for name in listed.replace("\\\n", " ").split()}
    pinned = {
        canonicalize_name(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert wheels <= pinned
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {canonicalize_name(Requirement(line).name) for line in extras["frontend"]}
    assert needed - wheels == {*WITH_TRANSFORMERS, "uvloop"}  # which the server does without
