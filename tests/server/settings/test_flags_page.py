"""docs/flags.md is what the source says."""

import pytest

from tests.documents import ROOT, flags_in, flags_of_serve
from tests.server.settings import flags_page


@pytest.mark.holds("There is one list of flags")
def test_the_page_is_up_to_date() -> None:
    """Where it is not: `make docs`."""
    assert (ROOT / "docs" / "flags.md").read_text() == flags_page.page()


def test_the_page_has_every_flag() -> None:
    assert flags_in(flags_page.page()) | {"--help"} == {flag for flag in flags_of_serve() if flag.startswith("--")}
