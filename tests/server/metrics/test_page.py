"""docs/metrics.md says what the code declares."""

import pytest

from server.metrics.page import page
from tests.structure.sources import ROOT


@pytest.mark.holds("Metrics")
def test_the_page_is_what_the_declarations_give() -> None:
    """`make docs` writes it."""
    assert (ROOT / "docs" / "metrics.md").read_text() == page()
