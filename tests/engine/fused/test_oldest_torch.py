"""With the oldest torch that pyproject.toml allows, models of the fused engine are right on a CPU, in FP8 too."""

import os
import re
import subprocess
import sys
import tempfile

import pytest

from tests.structure.sources import ROOT

TESTS = "tests/engine/fused/model"


def oldest() -> str:
    (version,) = re.findall(r'^ *"torch>=([\d.]+),', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(version)


def index() -> str:
    """Where `make` takes torch from. Empty = pip's default, whose torch needs CUDA's libraries too, 5 GB in all."""
    if "TORCH_INDEX" in os.environ:
        return os.environ["TORCH_INDEX"]
    command = (sys.executable, ROOT / ".ci" / "torch_index.py")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def install(version: str, folder: str) -> str:
    """An error's last line, or nothing."""
    where = ("--no-deps", "--index-url", found) if (found := index()) else ()
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--target", folder)
    ran = subprocess.run([*command, *where, f"torch=={version}.*"], capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stderr.strip().rpartition("\n")[2]


def output(*arguments: str, folder: str) -> str:
    """Of Python with what is installed there before its own packages; it has to succeed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**own, "PYTHONPATH": f"{folder}:{ROOT}"}
    command = (sys.executable, *arguments)
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_models_are_right() -> None:
    version = oldest()
    with tempfile.TemporaryDirectory(prefix="embedline-torch-") as folder:
        if error := install(version, folder):
            pytest.skip(f"torch {version} can't be had here: {error}")
        assert output("-c", "import torch; print(torch.__version__)", folder=folder).startswith(version)
        output("-m", "pytest", TESTS, folder=folder)
