"""What tests of the transformers engine load."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny_models import save


@pytest.fixture(scope="module")
def no_network() -> Iterator[None]:
    """Whoever opens a connection fails."""

    def connect(_: socket.socket, address: Any) -> None:
        raise AssertionError(f"something connects to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        yield


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save("bert", tmp_path / "model")
