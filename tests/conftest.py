"""What all tests share: which of them run, and how kernels are run."""

import os

import pytest

from engine.machine import cuda_driver

# Triton looks at this when a kernel is defined: without a GPU its interpreter runs them.
if not cuda_driver.find().gpus:
    os.environ["TRITON_INTERPRET"] = "1"

# Which markers take a test out of the default tier, and which tier it belongs to then.
REST = ("full", "gpu")
TIERS = ("default", "rest", "all", "nightly")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=TIERS,
        default="all",
        help="default: what `make test` runs; rest: what `make test-all` adds; all: both; nightly: the others",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests of the tier asked for. -m and -k choose among these."""
    tier = config.getoption("--tier")
    kept = [item for item in items if tier_of(item) == tier or (tier == "all" and tier_of(item) != "nightly")]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def tier_of(item: pytest.Item) -> str:
    """The one tier that a test belongs to: default, rest or nightly."""
    if item.get_closest_marker("nightly"):
        return "nightly"
    return "rest" if any(item.get_closest_marker(marker) for marker in REST) else "default"
