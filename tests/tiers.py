"""Tiers of tests: which one is run, and cases that only `make test-all` runs.

`make test` keeps at least one case of each behaviour.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def full(*cases: Any) -> list[Any]:
    """These cases, in the full tier. A tuple is one case of several arguments."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full) for case in cases]


def full_but(kept: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases; those that are not in `kept` are in the full tier."""
    stay = list(kept)
    return [case if case in stay else full(case)[0] for case in cases]


def tier_asked(tier: str | None, marks: str) -> str:
    """The tier to run: the value of --tier, else nightly if -m asks for nightly tests alone, else all but nightly."""
    return tier or ("nightly" if marks.strip() == "nightly" else "all")
