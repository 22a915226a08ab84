"""What tests of the engine share."""

from collections.abc import Iterator

import pytest

from tests.engine.tensorrt_llm.stand_in import library


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    with library():
        yield
