"""What the fused engine's tests share."""

from collections.abc import Iterator

import pytest

from engine.fused.model.linear import without_kernel


@pytest.fixture(autouse=True)
def no_known_lack() -> Iterator[None]:
    """What one test's stand-in for cuBLAS lacks, the next one's has."""
    yield
    without_kernel.clear()
